"""The embedded Triton of a running gateway: started again when it dies, waited for when its gateway was killed."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.embedded.preflight import SHARED_MEMORY
from gateway.embedded.workspace import NAME_PREFIX, is_one_ending, remove_leftovers
from tests.gateway_process import free_port, run_gateway
from tests.reliability.callers import ask, sample, wait_until


def embedded_settings(model_repository: Path) -> dict[str, Any]:
    ports = {f"embedded_{name}_port": free_port() for name in ("grpc", "http", "metrics")}
    return {"model_repository": model_repository, "embedded_triton": True, **ports}


def triton_pids(settings: dict[str, Any]) -> list[int]:
    """Return the process ids of the tritonserver on these ports, and of nothing else: one, or none."""
    argument = f"--grpc-port={settings['embedded_grpc_port']}"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().split("\0")
        except OSError:
            continue
        if command[0].endswith("tritonserver") and argument in command:
            found.append(int(path.parent.name))
    return found


def workspaces_of(pid: int) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{NAME_PREFIX}{pid}-*"))


def folders_of(pid: int) -> list[Path]:
    return [path for path in workspaces_of(pid) if path.is_dir()]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_triton_that_is_killed_is_started_again(model_repository: Path, tmp_path: Path, workers: int) -> None:
    settings = embedded_settings(model_repository)
    with run_gateway(tmp_path / "gateway.log", workers=workers, **settings) as gateway:
        before = vector(gateway.url)
        for _ in range(2):
            (killed,) = triton_pids(settings)
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: ask(gateway.url).status == 503, 10)
            wait_until(lambda: sample(gateway.url, "model_ready") == 0, 10)
            # The least of all workers, which notice one after the other.
            wait_until(lambda: sample(gateway.url, "model_ready") == 1, 60)
            wait_until(lambda: all(ask(gateway.url).status == 200 for _ in range(20)), 10)
            np.testing.assert_allclose(vector(gateway.url), before, atol=1e-6)
            assert killed not in triton_pids(settings)
            assert len(folders_of(gateway.process.pid)) == 1  # the dead one's is gone
        gateway.process.send_signal(signal.SIGINT)
        assert gateway.process.wait(30) == 0
        assert not triton_pids(settings)
        assert not workspaces_of(gateway.process.pid)
        log = gateway.log.read_text()
        assert log.count("the embedded Triton ended by itself, exit code -9: starting it again in ") == 2
        assert "Traceback" not in log


@pytest.mark.parametrize("delay_s", [0, 1, 1.5])
def test_ctrl_c_while_a_killed_one_is_away_leaves_nothing(
    model_repository: Path, tmp_path: Path, delay_s: float
) -> None:
    settings = embedded_settings(model_repository)
    with run_gateway(tmp_path / "gateway.log", **settings) as gateway:
        os.kill(triton_pids(settings)[0], signal.SIGKILL)
        time.sleep(delay_s)  # in the pause; as it is started again; while it loads its models
        gateway.process.send_signal(signal.SIGINT)
        assert gateway.process.wait(30) == 0
        assert not triton_pids(settings)
        assert not workspaces_of(gateway.process.pid)
        assert "Traceback" not in gateway.log.read_text()


def test_the_next_gateway_waits_for_the_triton_of_a_killed_one(model_repository: Path, tmp_path: Path) -> None:
    settings = embedded_settings(model_repository)
    with run_gateway(tmp_path / "killed.log", **settings) as killed:
        killed.process.kill()
        killed.process.wait()
        assert triton_pids(settings)  # it takes seconds to end
    with run_gateway(tmp_path / "next.log", **settings) as gateway:
        assert ask(gateway.url).status == 200
        assert gateway.log.read_text().count("waiting for the Triton of a gateway that was killed to end") == 1
        assert not workspaces_of(killed.process.pid)


def test_what_a_killed_gateway_leaves_goes_with_the_next_start(model_repository: Path, tmp_path: Path) -> None:
    settings = embedded_settings(model_repository)
    with run_gateway(tmp_path / "gateway.log", **settings) as gateway:
        gateway.process.kill()
        gateway.process.wait()
        wait_until(lambda: not triton_pids(settings) and not is_one_ending(), 20)  # its last files close after it
    assert folders_of(gateway.process.pid)
    remove_leftovers()  # as each start does
    assert not workspaces_of(gateway.process.pid)


def vector(url: str) -> list[float]:
    answer: list[float] = ask(url).document["data"][0]["embedding"]
    return answer
