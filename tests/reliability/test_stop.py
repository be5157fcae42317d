"""SIGTERM: not ready at once, nothing under way is lost, exit code 0 in time; and restarts that nobody notices."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen

import httpx
import pytest

from tests.reliability.callers import ask, sample, wait_until
from tests.stub_gateway import run_stub_gateway


@pytest.mark.parametrize("workers", [1, 4])
def test_what_is_under_way_is_finished(model_repository: Path, tmp_path: Path, workers: int) -> None:
    with run_stub_gateway(model_repository, tmp_path, workers=workers, drain_s=1.5) as stub_gateway:
        gateway, url = stub_gateway.gateway, stub_gateway.gateway.url
        wait_until(lambda: b"listening on" in gateway.log.read_bytes(), 60)
        stub_gateway.triton.delay_s = 3
        stub_gateway.triton.requests.clear()
        with ThreadPoolExecutor(9) as threads, httpx.Client(base_url=url) as idle:
            assert idle.get("/health/ready").status_code == 200
            before = [threads.submit(ask, url, f"tree {number}") for number in range(8)]
            wait_until(lambda: len(stub_gateway.triton.requests) >= 2, 10)
            gateway.process.send_signal(signal.SIGTERM)
            stopped = time.monotonic()
            wait_until(lambda: httpx.get(f"{url}/health/ready").status_code == 503, 0.5)
            assert httpx.get(f"{url}/health/live").status_code == 200
            last = idle.get("/health/ready")  # answered, and asked to leave the connection
            assert (last.status_code, last.headers["connection"]) == (503, "close")
            late = threads.submit(ask, url, "one that comes while the port is still open")
            assert {answer.result().status for answer in [*before, late]} == {200}
        assert gateway.process.wait(15) == 0
        assert 1.5 < time.monotonic() - stopped < 15
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health/live")
        assert "Traceback" not in gateway.log.read_text()


def test_a_terminals_ctrl_c_does_not_drain(model_repository: Path, tmp_path: Path) -> None:
    with run_stub_gateway(model_repository, tmp_path, drain_s=60) as stub_gateway:
        gateway = stub_gateway.gateway
        gateway.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert gateway.process.poll() is None
        gateway.process.send_signal(signal.SIGINT)
        assert gateway.process.wait(5) == 0


def interrupt_its_terminal(process: Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def interrupt_it(process: Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)


def interrupt_it_twice(process: Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)


def terminate_then_interrupt_it(process: Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    time.sleep(2)
    process.send_signal(signal.SIGINT)


def terminate_then_interrupt_it_twice(process: Popen[bytes]) -> None:
    terminate_then_interrupt_it(process)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("stop", "finishes"),
    [
        (interrupt_it, True),
        (interrupt_its_terminal, True),
        (interrupt_it_twice, False),
        (terminate_then_interrupt_it, True),
        (terminate_then_interrupt_it_twice, False),
    ],
)
def test_no_way_to_stop_it_under_load_ends_in_a_traceback(
    model_repository: Path, tmp_path: Path, stop: Callable[[Popen[bytes]], None], finishes: bool, workers: int
) -> None:
    with (
        run_stub_gateway(model_repository, tmp_path, workers=workers, drain_s=60) as stub_gateway,
        ThreadPoolExecutor(8) as threads,
    ):
        gateway, url = stub_gateway.gateway, stub_gateway.gateway.url
        wait_until(lambda: b"listening on" in gateway.log.read_bytes(), 60)
        stub_gateway.triton.delay_s = 4
        calls = [threads.submit(ask, url, f"tree {number}") for number in range(8)]
        wait_until(lambda: sample(url, "requests_in_flight") == 8 + 1, 10)
        stop(gateway.process)
        assert gateway.process.wait(30) == 0
        for call in calls:
            if finishes:
                assert call.result().status == 200
            else:  # its connection is broken, not left open
                with pytest.raises(httpx.TransportError):
                    call.result()
        log = gateway.log.read_text()
        assert "Traceback" not in log
        assert '"level":"error"' not in log


def test_requests_that_never_end_are_cut_off(model_repository: Path, tmp_path: Path) -> None:
    with (
        run_stub_gateway(model_repository, tmp_path, request_timeout_s=2) as stub_gateway,
        ThreadPoolExecutor(1) as one,
    ):
        stub_gateway.triton.delay_s = 60
        stub_gateway.triton.requests.clear()
        call = one.submit(ask, stub_gateway.gateway.url)
        wait_until(lambda: len(stub_gateway.triton.requests) >= 1, 10)
        stub_gateway.gateway.process.send_signal(signal.SIGTERM)
        assert call.result().status == 504
        assert stub_gateway.gateway.process.wait(6) == 0
