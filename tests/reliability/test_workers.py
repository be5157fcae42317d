"""Several worker processes: one gateway to callers, to Prometheus and to whoever starts and stops it."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.gateway_process import GatewayProcess, fail_to_start, run_gateway
from tests.integration.triton_figures import DEMO_MODEL
from tests.reliability.callers import answered, ask, is_ready, sample, samples, wait_until
from tests.stub_gateway import StubGateway, run_stub_gateway

WORKERS = 4


def worker_pids(gateway: GatewayProcess) -> list[int]:
    """Return the workers' process ids; the parent has another child, multiprocessing's own."""
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def metrics_folder(gateway: GatewayProcess) -> Path:
    """Return the folder of the workers' metrics, from a worker's environment."""
    environment = Path(f"/proc/{worker_pids(gateway)[0]}/environ").read_bytes().split(b"\0")
    (found,) = (one for one in environment if one.startswith(b"PROMETHEUS_MULTIPROC_DIR="))
    return Path(found.decode().partition("=")[2])


@pytest.fixture(scope="module")
def stub_gateway(model_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubGateway]:
    folder = tmp_path_factory.mktemp("workers")
    with run_stub_gateway(model_repository, folder, workers=WORKERS) as stub_gateway:
        wait_until(lambda: b"listening on" in stub_gateway.gateway.log.read_bytes(), 60)
        yield stub_gateway


def test_every_scrape_shows_all_workers_requests(stub_gateway: StubGateway) -> None:
    url = stub_gateway.gateway.url
    assert len(worker_pids(stub_gateway.gateway)) == WORKERS
    with ThreadPoolExecutor(8) as threads:
        assert {answer.status for answer in threads.map(lambda _: ask(url), range(200))} == {200}
    for _ in range(20):
        assert answered(url) == {"200": 200}  # a new connection each time: any worker answers
    assert (sample(url, "inputs_total"), sample(url, "model_ready")) == (200, 1)
    assert {name for name, labels in samples(url) if "pid" in dict(labels)} == set()


def test_a_scrape_while_a_worker_makes_its_files(stub_gateway: StubGateway) -> None:
    url, folder = stub_gateway.gateway.url, metrics_folder(stub_gateway.gateway)
    before = answered(url)
    empty = folder / "counter_1.db"  # as prometheus_client makes it, a moment before it gives it a length
    empty.touch()
    assert answered(url) == before
    empty.unlink()


def test_a_worker_that_is_killed_is_replaced_and_its_gauges_go(stub_gateway: StubGateway) -> None:
    url, gateway = stub_gateway.gateway.url, stub_gateway.gateway
    before = answered(url)["200"]
    pids = set(worker_pids(gateway))
    stub_gateway.triton.delay_s = 20
    with ThreadPoolExecutor(16) as threads:
        lost = [threads.submit(ask, url) for _ in range(16)]
        wait_until(lambda: sample(url, "requests_in_flight") == 17, 10)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for call in lost:
            with pytest.raises(httpx.TransportError):
                call.result()
    stub_gateway.triton.delay_s = 0
    replaced_s = wait_until(lambda: not pids & set(worker_pids(gateway)) and len(worker_pids(gateway)) == WORKERS, 10)
    assert replaced_s < 5
    wait_until(lambda: all_listen(url), 30)
    assert (sample(url, "requests_in_flight"), sample(url, "busy_slots"), sample(url, "queued_inputs")) == (1, 0, 0)
    assert ask(url).status == 200
    assert answered(url)["200"] == before + 1
    assert gateway.process.poll() is None


def all_listen(url: str) -> bool:
    try:
        return sample(url, "model_ready") == 1  # the least of all workers
    except httpx.TransportError:
        return False


def test_workers_end_with_their_parent_and_leave_nothing(model_repository: Path, tmp_path: Path) -> None:
    with run_stub_gateway(model_repository, tmp_path, workers=2) as stub_gateway:
        gateway = stub_gateway.gateway
        wait_until(lambda: b"listening on" in gateway.log.read_bytes(), 60)
        pids, folder = worker_pids(gateway), metrics_folder(gateway)
        assert folder.is_dir()
        gateway.process.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 15)
        assert not folder.exists()


@pytest.fixture
def repository(model_repository: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(model_repository / DEMO_MODEL, copy / DEMO_MODEL, ignore=shutil.ignore_patterns("1"))
    return copy


def test_workers_that_cannot_start_end_the_gateway_with_one_line(repository: Path) -> None:
    (repository / DEMO_MODEL / "tokenizer.json").unlink()
    started = time.monotonic()
    code, output = fail_to_start(model_repository=repository, workers=4)
    assert code == 1
    assert time.monotonic() - started < 20
    assert output.count("cannot start: ") == 1
    assert "tokenizer.json is missing" in output
    assert "Traceback" not in output


def test_a_foreign_folder_of_metrics_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(repository / "none"))
    code, output = fail_to_start(model_repository=repository)
    assert code == 1
    assert output.count("cannot start: unset PROMETHEUS_MULTIPROC_DIR") == 1
    assert "Traceback" not in output


def test_a_replacement_that_cannot_start_is_tried_again_while_others_serve(
    model_repository: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("key\n")
    headers = {"authorization": "Bearer key"}
    with run_stub_gateway(model_repository, tmp_path, workers=2, api_keys_file=keys) as stub_gateway:
        gateway = stub_gateway.gateway
        wait_until(lambda: b"listening on" in gateway.log.read_bytes(), 60)
        lost, healthy = worker_pids(gateway)
        keys.unlink()
        os.kill(lost, signal.SIGKILL)
        wait_until(lambda: gateway.log.read_bytes().count(b"cannot start: the file of API keys") >= 2, 60)
        assert b"a worker could not start, exit code 3: trying again in 1 s" in gateway.log.read_bytes()
        assert ask(gateway.url, headers=headers).status == 200  # by the keys that the healthy one knows
        assert healthy in worker_pids(gateway)
        keys.write_text("key\n")
        wait_until(lambda: gateway.log.read_bytes().count(b"Application startup complete") == 3, 60)
        assert ask(gateway.url, headers=headers).status == 200


def test_no_worker_that_listens_and_none_that_can_start_end_the_gateway(model_repository: Path, tmp_path: Path) -> None:
    with run_stub_gateway(model_repository, tmp_path, workers=2) as stub_gateway:
        gateway = stub_gateway.gateway
        wait_until(lambda: b"listening on" in gateway.log.read_bytes(), 60)
        (tmp_path / "triton_repo" / DEMO_MODEL / "manifest.json").write_text("{")
        for pid in worker_pids(gateway):
            os.kill(pid, signal.SIGKILL)
        assert gateway.process.wait(60) == 1
        log = gateway.log.read_text()
        assert "cannot start: " in log
        assert "a worker could not start, exit code 3: stopping" in log
        assert "Traceback" not in log


def test_a_port_that_is_taken_is_told_at_once(repository: Path, stub_gateway: StubGateway) -> None:
    port = int(stub_gateway.gateway.url.rpartition(":")[2])
    for workers in (1, 2):
        with pytest.raises(AssertionError, match=f"cannot listen on GATEWAY_HOST 127.0.0.1, GATEWAY_PORT {port}"):
            refuse_to_run(repository, port, workers)
    assert is_ready(stub_gateway.gateway.url)


def refuse_to_run(repository: Path, port: int, workers: int) -> None:
    # `wait_until_listening` asserts that the process runs, and shows its log.
    log = repository.parent / "gateway.log"
    with run_gateway(log, port=port, model_repository=repository, workers=workers) as gateway:
        gateway.process.wait(20)
        gateway.wait_until_listening()
