"""More load than the engine can stand: some are refused at once, the others get their answer in bounded time."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest

from tests.reliability.callers import ask, ask_async, sample, wait_until
from tests.reliability.load import Load
from tests.reliability.overload import health_times
from tests.stub_gateway import StubGateway, run_stub_gateway

CALL_S = 0.4
REQUEST: list[str] = ["tree " * 200] * 4
SUSTAINED = 10
"""Such requests a second: two instances, eight texts a call."""


async def test_latency_is_bounded_at_five_times_the_sustainable_load(model_repository: Path, tmp_path: Path) -> None:
    with run_stub_gateway(model_repository, tmp_path, max_queue_s=1, max_batch_tokens=8 * 256) as stub_gateway:
        url, stub_gateway.triton.delay_s = stub_gateway.gateway.url, CALL_S
        call = partial(ask_async, url=url, input_=REQUEST)
        await Load(5 * SUSTAINED, call).run_for(2)  # until a call has ended, nothing is known of the engine
        load = Load(5 * SUSTAINED, call)
        _, health = await asyncio.gather(load.run_for(5), health_times(url, 5))
    statuses = Counter(answer.status for answer in load.answers)
    assert statuses.keys() == {200, 429}
    assert sum(statuses.values()) == load.sent
    assert statuses[200] > 3 * SUSTAINED  # the engine is kept busy
    accepted = load.took_s(200)
    assert accepted[len(accepted) // 2] < 1 + 3 * CALL_S
    assert accepted[-1] < 5  # with no bound it would be 30 s
    assert load.took_s(429)[statuses[429] // 2] < 0.2
    assert {int(one.headers["retry-after"]) for one in load.answers if one.status == 429} <= {1, 2, 3, 4}
    assert health[int(len(health) * 0.9)] < 0.2


def test_strings_and_lists_count_alike_and_nothing_is_half_taken(model_repository: Path, tmp_path: Path) -> None:
    soon = {"x-request-timeout-s": "4"}
    with (
        run_stub_gateway(model_repository, tmp_path, max_queued_inputs=100) as stub_gateway,
        ThreadPoolExecutor(2) as threads,
    ):
        url, stub_gateway.triton.delay_s = stub_gateway.gateway.url, 30
        running = threads.submit(ask, url, ["a tree"] * 64, soon)  # two full batches
        wait_until(lambda: sample(url, "busy_slots") == 2, 5)
        waiting = threads.submit(ask, url, ["a tree"] * 100, soon)
        wait_until(lambda: sample(url, "queued_inputs") == 100, 5)
        for one in ("a tree", ["a tree"], ["a tree"] * 2000):
            refused = ask(url, one)
            assert (refused.status, refused.code) == (429, "overloaded")
            assert refused.document["error"]["type"] == "rate_limit_error"
            assert int(refused.headers["retry-after"]) >= 1
        assert sample(url, "refused_requests_total", limit="queued_inputs") == 3
        assert sample(url, "queued_inputs") == 100
        assert {running.result().status, waiting.result().status} == {504}
        assert sample(url, "queued_inputs") == sample(url, "queued_tokens") == 0


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ("[request id: <id_unknown>] Exceeds maximum queue size", 429, "overloaded"),
        ("[request id: <id_unknown>] Request timeout expired", 504, "engine_timeout"),
        ("Socket closed", 503, "engine_unavailable"),
    ],
)
def test_tritons_own_refusals_are_told_apart(stub_gateway: StubGateway, message: str, status: int, code: str) -> None:
    stub_gateway.triton.status = (grpc.StatusCode.UNAVAILABLE, message)
    refused = ask(stub_gateway.gateway.url)
    assert (refused.status, refused.code) == (status, code)
    assert ("retry-after" in refused.headers) == (status in (429, 503))


async def test_two_hundred_at_once_against_a_full_triton(stub_gateway: StubGateway) -> None:
    stub_gateway.triton.status = (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
    url = stub_gateway.gateway.url
    before = sample(url, "refused_requests_total", limit="triton_queue")
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=100)) as client:
        inputs: list[str | list[str]] = ["a tree", ["a tree"]]
        answers = await asyncio.gather(*(ask_async(client, url, inputs[number % 2]) for number in range(200)))
    assert {(answer.status, answer.code) for answer in answers} == {(429, "overloaded")}
    assert sample(url, "refused_requests_total", limit="triton_queue") == before + 200
