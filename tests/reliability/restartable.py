"""The real Triton on ports that stay the same while it is killed, stopped and started again."""

import os
import signal
from pathlib import Path
from typing import Self

from gateway.embedded import EmbeddedTriton
from tests.gateway_process import free_port


class RestartableTriton:
    """For a `with` block; `start()` is for the main thread, as is EmbeddedTriton's.

    Attributes:
        url: host:port of its gRPC endpoint.
        repository: the folder of its models.
    """

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        ports = [free_port() for _ in range(3)]
        self.url = f"127.0.0.1:{ports[0]}"
        self._triton = EmbeddedTriton(repository, grpc_port=ports[0], http_port=ports[1], metrics_port=ports[2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self._triton.stop()

    def is_alive(self) -> bool:
        return self._triton.is_alive()

    def start(self, timeout_s: float = 60) -> None:
        """Start it and return when it is ready."""
        self._triton.stop()  # removes what a killed one left
        self._triton.start()
        self._triton.wait_ready(timeout_s)

    def kill(self) -> None:
        """End it as an out-of-memory kill would."""
        os.killpg(self._triton.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Stop it in the middle of whatever it does: its port still accepts, nothing answers.

        The server alone: stopped together with its Python instances, Triton 2.51 mixes up their answers afterwards.
        """
        os.kill(self._triton.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_alive():
            os.killpg(self._triton.pid, signal.SIGCONT)
