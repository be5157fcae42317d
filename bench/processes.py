"""Starts the servers that are measured, on free ports of the loopback interface, and stops them."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
INFINITY = ROOT / ".venv-infinity" / "bin" / "infinity_emb"
"""infinity-emb in an environment of its own; `make bench` sets it up."""

_SHOWN_OF_LOG = 400


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        embeddings_url: where its embeddings are asked for.
        pid: its process.
        triton_grpc: the gateway's Triton, host:port; empty for others.
    """

    embeddings_url: str
    pid: int
    triton_grpc: str = ""

    @property
    def rss_mib(self) -> float:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def metrics(self) -> dict[str, float]:
        """Return the gateway's metrics, by series."""
        with urllib.request.urlopen(self.embeddings_url.replace("/v1/embeddings", "/metrics")) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def run_gateway(repository: Path, module: str = "gateway", **settings: object) -> Iterator[Server]:
    """Run the gateway, or a module around it, on an embedded Triton."""
    port, grpc_port = free_port(), free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    settings = {
        "port": port,
        "model_repository": repository,
        "embedded_triton": "true",
        "embedded_grpc_port": grpc_port,
        "embedded_http_port": 0,
        "embedded_metrics_port": 0,
        "log_level": "warning",
        **settings,
    }
    environment |= {f"GATEWAY_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", module]
    with _run(command, environment, f"http://127.0.0.1:{port}/health/ready") as pid:
        yield Server(f"http://127.0.0.1:{port}/v1/embeddings", pid, f"127.0.0.1:{grpc_port}")


@contextmanager
def run_infinity(model_folder: Path) -> Iterator[Server]:
    """Run infinity-emb: torch engine, CPU, without BetterTransformer, as its documentation advises for a CPU."""
    port = free_port()
    command = [
        str(INFINITY), "v2", "--model-id", str(model_folder), "--served-model-name", model_folder.name,
        "--engine", "torch", "--device", "cpu", "--no-bettertransformer", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    with _run(command, environment, f"http://127.0.0.1:{port}/health") as pid:
        yield Server(f"http://127.0.0.1:{port}/embeddings", pid)


@contextmanager
def _run(command: list[str], environment: dict[str, str], ready_url: str) -> Iterator[int]:
    log = ROOT / ".cache" / "bench.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_ready(process, ready_url, log)
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def wait_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Return when the process answers at that address.

    Raises:
        RuntimeError: it ended, or took more than three minutes.
    """
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    end = log.read_text(errors="replace")[-_SHOWN_OF_LOG:]
    raise RuntimeError(f"{process.args!r} did not get ready; {log} ends with: {end}")
