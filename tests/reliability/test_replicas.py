"""Two real Tritons behind one gateway: one is killed, stopped, started late or with another model, under load."""

import asyncio
import base64
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.gateway_process import GatewayProcess, run_gateway
from tests.integration.texts import TEXTS
from tests.integration.triton_figures import DEMO_MODEL
from tests.reliability.callers import Answer, ask, ask_async, is_ready, sample, samples, wait_until
from tests.reliability.load import Load
from tests.reliability.restartable import RestartableTriton

INPUTS = [text for text in TEXTS if len(text) < 200]


@pytest.fixture(scope="module")
def _second(model_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableTriton]:
    """A Triton on a copy of the repository that a test may change."""
    copy = tmp_path_factory.mktemp("second") / "triton_repo"
    shutil.copytree(model_repository, copy)
    with RestartableTriton(copy) as triton:
        triton.start()
        yield triton


@pytest.fixture(scope="module")
def gateway(
    _restartable: RestartableTriton,
    _second: RestartableTriton,
    model_repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    urls = f"{_restartable.url},{_second.url}"
    # A busy machine is not the subject: what has to wait waits.
    with run_gateway(log, model_repository=model_repository, triton_url=urls, max_queue_s=30) as process:
        yield process


@pytest.fixture
def second(gateway: GatewayProcess, triton: RestartableTriton, _second: RestartableTriton) -> RestartableTriton:
    """The other Triton; both are in use at the begin of each test."""
    if not _second.is_alive():
        _second.start()
    _second.resume()
    wait_until(lambda: all(is_up(gateway, each) for each in (triton, _second)), 20)
    return _second


def is_up(gateway: GatewayProcess, triton: RestartableTriton) -> bool:
    return sample(gateway.url, "triton_endpoint_up", endpoint=triton.url) == 1


def calls(gateway: GatewayProcess, triton: RestartableTriton) -> float:
    return sample(gateway.url, "triton_endpoint_calls_total", endpoint=triton.url)


def lost_calls(gateway: GatewayProcess, triton: RestartableTriton) -> float:
    return sample(gateway.url, "triton_endpoint_lost_calls_total", endpoint=triton.url)


def vectors(answer: Answer) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer.document["data"]])


class LoadOnBoth:
    """Asks for the same texts, some at a time, until the block ends; then every answer must be 200 and right."""

    def __init__(self, gateway: GatewayProcess, rate: float = 6) -> None:
        self._url = gateway.url
        right = ask(gateway.url, INPUTS, encoding_format="base64", truncate="END")
        self._right = dict(zip(INPUTS, vectors(right), strict=True))
        self._load = Load(rate, self._call)
        self._thread = ThreadPoolExecutor(1)

    async def _call(self, client: httpx.AsyncClient) -> Answer:
        first = self._load.sent % len(INPUTS)
        texts = (INPUTS[first:] + INPUTS[:first])[: 1 + first % 3]
        answer = await ask_async(client, self._url, texts)
        assert answer.status == 200, answer
        for text, vector in zip(texts, vectors(answer), strict=True):
            assert float(vector @ self._right[text]) > 0.9999
        return answer

    def __enter__(self) -> "LoadOnBoth":
        self._running = self._thread.submit(asyncio.run, self._load.run())
        wait_until(lambda: len(self._load.answers) >= 5, 20)
        return self

    def __exit__(self, *_: object) -> None:
        self._load.stop()
        self._running.result()
        assert self._load.sent == len(self._load.answers)


def test_calls_are_spread_over_both(
    gateway: GatewayProcess, triton: RestartableTriton, second: RestartableTriton
) -> None:
    first_before, second_before = calls(gateway, triton), calls(gateway, second)
    with LoadOnBoth(gateway):
        wait_until(lambda: calls(gateway, triton) > first_before + 10, 20)
        wait_until(lambda: calls(gateway, second) > second_before + 10, 20)
    assert sample(gateway.url, "slots") == 4


def test_one_is_killed_and_nobody_notices(
    gateway: GatewayProcess, triton: RestartableTriton, second: RestartableTriton
) -> None:
    with LoadOnBoth(gateway):
        second.kill()
        wait_until(lambda: not is_up(gateway, second), 5)
        assert sample(gateway.url, "slots") == 2
        assert is_ready(gateway.url)
        time.sleep(2)
        second.start()
        wait_until(lambda: is_up(gateway, second), 20)
        was = calls(gateway, second)
        wait_until(lambda: calls(gateway, second) > was + 3, 20)
    assert sample(gateway.url, "slots") == 4


def test_a_call_that_is_lost_is_made_again_on_the_other(
    gateway: GatewayProcess, triton: RestartableTriton, second: RestartableTriton
) -> None:
    before, lost = calls(gateway, second), lost_calls(gateway, second)
    with ThreadPoolExecutor(1) as thread:
        long = thread.submit(ask, gateway.url, ["tree " * 250] * 60)
        wait_until(lambda: calls(gateway, second) > before, 20)
        second.kill()
        assert long.result().status == 200
    assert lost_calls(gateway, second) > lost


def test_one_hangs_and_is_left(gateway: GatewayProcess, triton: RestartableTriton, second: RestartableTriton) -> None:
    with LoadOnBoth(gateway):
        second.pause()
        wait_until(lambda: not is_up(gateway, second), 3)  # before it is given up
        assert ask(gateway.url).took_s < 3  # not those that wait for its answers
        assert is_ready(gateway.url)
        wait_until(lambda: sample(gateway.url, "slots") == 2, 10)
        second.resume()
        wait_until(lambda: is_up(gateway, second), 20)


def test_both_are_killed_and_one_comes_back(
    gateway: GatewayProcess, triton: RestartableTriton, second: RestartableTriton
) -> None:
    triton.kill()
    second.kill()
    wait_until(lambda: not is_ready(gateway.url), 5)
    refused = ask(gateway.url)
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "engine_unavailable", "1")
    assert sample(gateway.url, "slots") == 2  # never none
    second.start()
    wait_until(lambda: ask(gateway.url).status == 200, 20)


@contextmanager
def restarted_with(triton: RestartableTriton, file: Path, content: bytes) -> Iterator[None]:
    """Start it again with another content of one of its model's files; end it afterwards."""
    right = file.read_bytes()
    triton.kill()
    file.write_bytes(content)
    try:
        triton.start()
        yield
    finally:
        file.write_bytes(right)
        triton.kill()
        wait_until(lambda: not triton.is_alive(), 5)


def expect_unused(gateway: GatewayProcess, triton: RestartableTriton, reason: str) -> None:
    """Wait until the log has the reason; then it gets no calls."""
    line = f"endpoint {re.escape(triton.url)} is not used .*{reason}"
    wait_until(lambda: re.search(line, gateway.log.read_text()) is not None, 20)
    was = calls(gateway, triton)
    time.sleep(2)
    assert calls(gateway, triton) == was
    assert not is_up(gateway, triton)


def test_back_with_another_configuration_it_is_not_used(
    gateway: GatewayProcess, triton: RestartableTriton, second: RestartableTriton
) -> None:
    config = second.repository / DEMO_MODEL / "config.pbtxt"
    other = config.read_bytes().replace(b"max_batch_size: 32", b"max_batch_size: 16")
    with LoadOnBoth(gateway), restarted_with(second, config, other):
        expect_unused(gateway, second, "max_batch_size 16 instead of 32")


def test_back_with_other_weights_it_is_not_used(
    gateway: GatewayProcess, triton: RestartableTriton, second: RestartableTriton
) -> None:
    path = next((second.repository / DEMO_MODEL / "1").glob("*.onnx"))
    model = onnx.load(path)
    largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    turned = numpy_helper.to_array(largest)[::-1].copy()
    largest.CopyFrom(numpy_helper.from_array(turned, largest.name))
    with LoadOnBoth(gateway), restarted_with(second, path, model.SerializeToString()):
        expect_unused(gateway, second, "vectors differ from its manifest's")


def test_started_with_one_of_two(
    gateway: GatewayProcess,
    triton: RestartableTriton,
    second: RestartableTriton,
    model_repository: Path,
    tmp_path: Path,
) -> None:
    second.kill()
    wait_until(lambda: not second.is_alive(), 5)
    urls = f"{second.url},{triton.url}"
    with run_gateway(tmp_path / "gateway.log", model_repository=model_repository, triton_url=urls) as late:
        assert ask(late.url).status == 200
        assert sample(late.url, "slots") == 2
        assert not is_up(late, second)
        second.start()
        wait_until(lambda: sample(late.url, "slots") == 4, 20)


def test_all_addresses_of_a_name(triton: RestartableTriton, model_repository: Path, tmp_path: Path) -> None:
    port = triton.url.rpartition(":")[2]
    url = f"dns:///localhost:{port}"
    with run_gateway(tmp_path / "gateway.log", model_repository=model_repository, triton_url=url, workers=2) as named:
        assert ask(named.url).status == 200
        endpoints = {
            dict(labels).get("endpoint") for name, labels in samples(named.url) if name == "triton_endpoint_up"
        }
        assert endpoints == {triton.url}
        assert is_up(named, triton)
