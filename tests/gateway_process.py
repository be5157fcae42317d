"""The gateway as its users run it: `python -m gateway`, a real uvicorn, settings from the environment."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]


@dataclass
class GatewayProcess:
    """A running gateway.

    Attributes:
        url: where it listens.
        process: its process.
        log: the file of its log.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until_listening(self, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                httpx.get(f"{self.url}/health/live", timeout=5)
                return
            except httpx.TransportError:
                time.sleep(0.05)
        raise TimeoutError(self.log.read_text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def gateway_environment(**settings: object) -> dict[str, str]:
    """Return the environment of a gateway with these settings and no others, that stops without draining."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    settings = {"drain_s": 0, **settings}
    return environment | {f"GATEWAY_{name.upper()}": str(value) for name, value in settings.items()}


@contextmanager
def run_gateway(log: Path, **settings: object) -> Iterator[GatewayProcess]:
    """Start a gateway, on a free port unless one is given, wait until it listens, and stop it in the end."""
    settings = {"port": free_port(), **settings}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway"],
            cwd=ROOT,
            env=gateway_environment(**settings),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it leads a process group, as in a terminal
        )
    try:
        gateway = GatewayProcess(f"http://127.0.0.1:{settings['port']}", process, log)
        gateway.wait_until_listening()
        yield gateway
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def fail_to_start(**settings: object) -> tuple[int, str]:
    """Run a gateway that must end by itself; return its exit code and what it wrote."""
    result = subprocess.run(
        [sys.executable, "-m", "gateway"],
        cwd=ROOT,
        env=gateway_environment(**{"port": free_port(), "log_format": "text", **settings}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr
