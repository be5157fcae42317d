"""The real Triton is killed, stopped, late: the gateway says so quickly, and serves again without a restart."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gateway_process import ROOT, GatewayProcess, free_port, gateway_environment, run_gateway
from tests.reliability.callers import ask, is_live, is_ready, wait_until
from tests.reliability.restartable import RestartableTriton

LONG = ["tree " * 250] * 200
"""Some seconds of work."""


@pytest.fixture(scope="module")
def gateway(
    _restartable: RestartableTriton, model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    with run_gateway(log, model_repository=model_repository, triton_url=_restartable.url) as process:
        yield process


def test_killed_and_started_again(gateway: GatewayProcess, triton: RestartableTriton) -> None:
    wait_until(lambda: is_ready(gateway.url), 10)
    with ThreadPoolExecutor(1) as thread:
        in_flight = thread.submit(ask, gateway.url, LONG)
        time.sleep(0.5)
        triton.kill()
        killed = time.monotonic()
        assert in_flight.result().status == 503
        assert time.monotonic() - killed < 2
    for _ in range(3):
        refused = ask(gateway.url)
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "engine_unavailable", "1")
        assert refused.took_s < 1
    assert not is_ready(gateway.url)
    assert is_live(gateway.url)
    time.sleep(3)  # long enough for gRPC to wait long between its attempts
    triton.start()
    assert wait_until(lambda: ask(gateway.url).status == 200, 10) < 2
    assert is_ready(gateway.url)


def test_accepts_and_never_answers(gateway: GatewayProcess, triton: RestartableTriton) -> None:
    wait_until(lambda: is_ready(gateway.url), 10)
    with ThreadPoolExecutor(1) as thread:
        triton.pause()
        paused = time.monotonic()
        in_flight = thread.submit(ask, gateway.url)
        assert wait_until(lambda: not is_ready(gateway.url), 10) < 2
        assert is_live(gateway.url)
        assert in_flight.result().status == 503
        assert time.monotonic() - paused < 8  # not its deadline of 30 s
    assert ask(gateway.url).took_s < 1
    triton.resume()
    assert wait_until(lambda: ask(gateway.url).status == 200, 10) < 2


def test_paused_for_a_moment_nobody_is_refused(gateway: GatewayProcess, triton: RestartableTriton) -> None:
    wait_until(lambda: is_ready(gateway.url), 10)
    with ThreadPoolExecutor(4) as threads:
        triton.pause()
        answers = [threads.submit(ask, gateway.url, f"tree {number}") for number in range(4)]
        time.sleep(1)
        triton.resume()
        assert [answer.result().status for answer in answers] == [200] * 4


def test_started_late(triton: RestartableTriton, model_repository: Path, tmp_path: Path) -> None:
    triton.kill()
    wait_until(lambda: not triton.is_alive(), 5)
    log = tmp_path / "gateway.log"
    with ThreadPoolExecutor(1) as thread:

        def run_and_ask() -> int:
            with run_gateway(log, model_repository=model_repository, triton_url=triton.url) as late:
                return ask(late.url).status

        status = thread.submit(run_and_ask)
        wait_until(lambda: log.exists() and b"waiting for model" in log.read_bytes(), 20)
        triton.start()
        assert status.result() == 200


def test_told_to_stop_while_it_waits_for_triton(model_repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    for workers in (1, 2):
        environment = gateway_environment(
            port=free_port(), model_repository=model_repository, triton_url=f"127.0.0.1:{free_port()}", workers=workers
        )
        with (
            log.open("wb") as file,
            subprocess.Popen([sys.executable, "-m", "gateway"], cwd=ROOT, env=environment, stderr=file) as process,
        ):
            wait_until(lambda: b"waiting for model" in log.read_bytes(), 20)
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(5) == 0
        assert b"Traceback" not in log.read_bytes(), log.read_text()
