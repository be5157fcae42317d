"""`make demo` as a newcomer runs it: it prints commands that work, and Ctrl-C ends all of it."""

import json
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway_process import ROOT, free_port, gateway_environment

READY = "Ctrl-C stops all"


class Demo:
    """A running `make demo`, in a process group of its own, like that of a terminal."""

    def __init__(self) -> None:
        self.grpc_port = free_port()
        ports = {"port": free_port(), "embedded_http_port": free_port(), "embedded_metrics_port": free_port()}
        self.process = subprocess.Popen(
            ["make", "demo"],
            cwd=ROOT,
            env=gateway_environment(embedded_grpc_port=self.grpc_port, **ports),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output: list[str] = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.output.append(line)
            if READY in line:
                self.ready.set()
        self.ready.set()

    @property
    def text(self) -> str:
        return "".join(self.output)

    def processes(self) -> set[int]:
        """Return the process ids of everything that the demo started: make's group, and Triton's."""
        return processes_of(group=self.process.pid) | processes_of(argument=f"--grpc-port={self.grpc_port}")


def processes_of(*, group: int | None = None, argument: str | None = None) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().split("\0")
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if state != "Z" and (argument in command or int(its_group) == group):
            found.add(int(folder.name))
    return found


def shared_memory_of(processes: set[int]) -> list[Path]:
    return [path for pid in processes for path in Path("/dev/shm").glob(f"*-{pid}-*")]


@pytest.fixture
def demo() -> Iterator[Demo]:
    demo = Demo()
    yield demo
    for pid in demo.processes():
        os.kill(pid, signal.SIGKILL)
    demo.process.wait()
    demo.reader.join()
    assert demo.process.stdout
    demo.process.stdout.close()


@pytest.mark.timeout(600)  # the first run sets up its environment
def test_the_printed_commands_work_and_ctrl_c_ends_all(demo: Demo) -> None:
    assert demo.ready.wait(500)
    commands = re.findall(r"^ +(curl .*)$", demo.text, re.MULTILINE)
    assert len(commands) == 2, demo.text
    for command in commands:
        answer = subprocess.run(shlex.split(command), capture_output=True, check=True, timeout=60)
        assert json.loads(answer.stdout)["data"][0]["embedding"]
    started = demo.processes()
    assert len(started) >= 3  # make, the gateway, Triton
    assert shared_memory_of(started)

    os.killpg(demo.process.pid, signal.SIGINT)

    demo.process.wait(10)
    assert not demo.processes()
    assert not shared_memory_of(started)
    assert "Traceback" not in demo.text
    assert "ERROR" not in demo.text
