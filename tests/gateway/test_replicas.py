"""Which endpoint gets a call, and what becomes of it; tests/reliability/test_replicas.py has real Tritons."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gateway.batching import pad
from gateway.errors import (
    EngineBadOutput,
    EngineRejected,
    EngineSilent,
    EngineTimeout,
    EngineUnavailable,
    StartupError,
)
from gateway.metrics import Metrics
from gateway.pooling import normalize
from gateway.replicas import Replicas, open_replicas
from gateway.self_check import SelfCheck
from gateway.triton_url import TritonUrl, parse_triton_url
from gateway.types import ModelSpec
from tests.fakes import FakeEngine, encoding, expected_rows, make_spec

KNOWN = [encoding(1, 2, 3), encoding(4, 5)]
CHECK = SelfCheck(KNOWN, normalize(expected_rows(KNOWN)))
BATCH = pad([encoding(7, 8, 9).input_ids], 4, 0)


@dataclass
class HangingEngine(FakeEngine):
    """A fake engine whose answers to simple questions wait for `answers`."""

    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def check_ready(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self.answers.wait(), timeout_s)
        except TimeoutError:
            raise EngineSilent("Triton does not answer.") from None


@dataclass
class Endpoints:
    """Fake engines by endpoint, and what the replicas told of them."""

    engines: dict[str, FakeEngine]
    metrics: Metrics = field(default_factory=Metrics)
    counts: list[int] = field(default_factory=list)
    replicas: Replicas = field(init=False)

    async def start(self, url: TritonUrl) -> None:
        spec = next(iter(self.engines.values())).spec
        endpoints = await url.resolve()
        self.replicas = Replicas(url, endpoints, spec, lambda endpoint, _: self.engines[endpoint], self.metrics)
        await self.replicas.start(CHECK, self.counts.append)

    async def call(self, timeout_s: float = 5.0) -> None:
        output = await self.replicas.infer(BATCH, timeout_s)
        np.testing.assert_allclose(output[:, :3].mean(axis=1), expected_rows([encoding(7, 8, 9)]), rtol=1e-5)

    def calls(self) -> list[int]:
        """Return how many calls each got, the self-check's left out."""
        return [int(self.value("calls_total", endpoint) or 0) for endpoint in self.engines]

    def value(self, name: str, endpoint: str) -> float | None:
        labels = {"model": "fake", "endpoint": endpoint}
        return self.metrics.registry.get_sample_value(f"gateway_triton_endpoint_{name}", labels)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)


Start = Callable[..., Awaitable[Endpoints]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts replicas on fake engines named a:1, b:1 and so on, and waits until all that can be are in use."""
    started: list[Endpoints] = []

    async def factory(*engines: FakeEngine, in_use: int | None = None) -> Endpoints:
        endpoints = Endpoints({f"{name}:1": engine for name, engine in zip("abc", engines, strict=False)})
        await endpoints.start(TritonUrl(tuple(endpoints.engines)))
        started.append(endpoints)
        expected = len(engines) if in_use is None else in_use
        await endpoints.until(lambda: endpoints.counts[-1] == expected)
        return endpoints

    yield factory
    for endpoints in started:
        await endpoints.replicas.close()
        assert all(engine.closed for engine in endpoints.engines.values())


async def test_equally_busy_ones_take_turns(start: Start) -> None:
    endpoints = await start(FakeEngine(), FakeEngine(), FakeEngine())
    for _ in range(9):
        await endpoints.call()
    assert endpoints.calls() == [3, 3, 3]


async def test_the_least_loaded_one_is_chosen(start: Start) -> None:
    slow = FakeEngine()
    endpoints = await start(slow, FakeEngine())
    slow.gate = asyncio.Event()
    waiting = [asyncio.create_task(endpoints.call()) for _ in range(2)]
    await asyncio.sleep(0.01)
    for _ in range(10):
        await endpoints.call()
    assert endpoints.calls() == [1, 11]
    slow.gate.set()
    await asyncio.gather(*waiting)


async def test_a_lost_call_is_made_again_and_its_endpoint_left_until_it_is_checked(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    endpoints = await start(first, second)
    first.error = EngineUnavailable("Triton cannot be reached.")
    for _ in range(4):
        await endpoints.call()
    assert endpoints.calls() == [1, 4]
    assert endpoints.value("lost_calls_total", "a:1") == 1
    assert endpoints.value("up", "a:1") == 0
    assert endpoints.counts[-1] == 1
    first.error = None
    await endpoints.until(lambda: endpoints.counts[-1] == 2)
    assert endpoints.value("up", "a:1") == 1


@pytest.mark.parametrize("error", [EngineRejected("no"), EngineBadOutput("nonsense")])
async def test_one_that_refuses_what_another_takes_is_left(start: Start, error: Exception) -> None:
    sick = FakeEngine()
    endpoints = await start(sick, FakeEngine())
    sick.error = error
    for _ in range(4):
        await endpoints.call()
    assert endpoints.calls() == [1, 4]
    assert sick.reconnects == 1  # what else is under way there may be wrong


async def test_a_batch_that_all_refuse_is_the_batchs_fault(start: Start) -> None:
    engines = FakeEngine(), FakeEngine()
    endpoints = await start(*engines)
    for engine in engines:
        engine.error = EngineRejected("no")
    with pytest.raises(EngineRejected):
        await endpoints.call()
    assert endpoints.counts[-1] == 2


async def test_a_late_call_is_not_made_again(start: Start) -> None:
    late = FakeEngine(), FakeEngine()
    endpoints = await start(*late)
    for engine in late:
        engine.error = EngineTimeout("late")
    with pytest.raises(EngineTimeout):
        await endpoints.call()
    assert sum(endpoints.calls()) == 1


async def test_without_any_endpoint(start: Start) -> None:
    engines = FakeEngine(), FakeEngine()
    endpoints = await start(*engines)
    await endpoints.replicas.check_ready(1)
    for engine in engines:
        engine.not_ready = EngineUnavailable("Triton has not loaded the model.")
    await endpoints.until(lambda: endpoints.counts[-1] == 0)
    with pytest.raises(EngineUnavailable, match=r"No endpoint .* used\. Triton has not loaded the model\.$"):
        await endpoints.replicas.check_ready(1)
    with pytest.raises(EngineUnavailable):
        await endpoints.call()


async def test_one_that_hangs_gets_calls_only_if_all_do_and_is_given_up(start: Start) -> None:
    first, second = HangingEngine(), HangingEngine()
    first.answers.set()
    second.answers.set()
    endpoints = await start(first, second)
    first.answers.clear()
    await endpoints.until(lambda: endpoints.value("up", "a:1") == 0)
    assert endpoints.counts[-1] == 2  # its calls under way keep their slots
    before = endpoints.calls()
    for _ in range(3):
        await endpoints.call()
    assert endpoints.calls() == [before[0], before[1] + 3]
    second.answers.clear()
    await endpoints.until(lambda: endpoints.value("up", "b:1") == 0)
    await endpoints.call()  # both are stalled, and one may come round
    second.answers.set()
    await endpoints.until(lambda: endpoints.counts[-1] == 1)
    assert first.reconnects > 0
    first.answers.set()
    await endpoints.until(lambda: endpoints.counts[-1] == 2)


async def test_one_with_other_vectors_is_not_used(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    other = FakeEngine()
    monkeypatch.setattr(other, "_answer", lambda batch: FakeEngine()._answer(batch)[:, :, ::-1])
    endpoints = await start(FakeEngine(), other, in_use=1)
    await endpoints.until(lambda: len(other.batches) >= 2 * len(KNOWN))
    for _ in range(4):
        await endpoints.call()
    assert endpoints.calls() == [4, 0]


async def test_connections_that_are_given_up(start: Start) -> None:
    engines = FakeEngine(), FakeEngine()
    endpoints = await start(*engines)
    await endpoints.replicas.reconnect()
    assert [engine.reconnects for engine in engines] == [1, 1]
    assert endpoints.counts[-1] == 0
    await endpoints.until(lambda: endpoints.counts[-1] == 2)


async def test_started_before_any_can_be_used(start: Start) -> None:
    engine = FakeEngine(not_ready=EngineUnavailable("not yet"))
    endpoints = await start(engine, in_use=0)
    engine.not_ready = None
    await endpoints.until(lambda: endpoints.counts[-1] == 1)


async def test_a_names_addresses_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver is a fake: this machine's has no name whose addresses change."""
    addresses = ["10.0.0.1"]

    def fake_getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 8001)) for address in addresses]

    monkeypatch.setattr("socket.getaddrinfo", fake_getaddrinfo)
    monkeypatch.setattr("gateway.replicas._RESOLVE_PERIOD_S", 0.01)
    first, second = "10.0.0.1:8001", "10.0.0.2:8001"
    endpoints = Endpoints({first: FakeEngine(), second: FakeEngine()})
    await endpoints.start(parse_triton_url("dns:///triton:8001"))
    assert endpoints.counts[-1] == 1

    addresses.append("10.0.0.2")
    await endpoints.until(lambda: endpoints.counts[-1] == 2)
    assert endpoints.value("up", second) == 1

    gate = endpoints.engines[first].gate = asyncio.Event()
    under_way = [asyncio.create_task(endpoints.call()) for _ in range(2)]
    await asyncio.sleep(0.01)
    addresses.remove("10.0.0.1")
    await endpoints.until(lambda: endpoints.counts[-1] == 1)
    assert endpoints.value("up", first) is None
    assert not endpoints.engines[first].closed
    gate.set()
    await asyncio.gather(*under_way)
    await endpoints.until(lambda: endpoints.engines[first].closed)

    addresses.clear()
    await asyncio.sleep(0.05)
    await endpoints.call()  # a name without addresses keeps its last

    endpoints.engines["10.0.0.3:8001"] = FakeEngine()
    gate = endpoints.engines[second].gate = asyncio.Event()
    lost = asyncio.create_task(endpoints.call())
    await asyncio.sleep(0.01)
    addresses.append("10.0.0.3")
    await endpoints.until(lambda: endpoints.value("up", second) is None)
    await endpoints.replicas.close()
    assert endpoints.engines[second].closed  # though it had not drained
    gate.set()
    await lost


def reader(answers: dict[str, ModelSpec | Exception]) -> Callable[[str], Awaitable[ModelSpec]]:
    async def read(endpoint: str) -> ModelSpec:
        answer = answers[endpoint]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return read


async def open_(answers: dict[str, ModelSpec | Exception], timeout_s: float = 0.1) -> Replicas:
    url = TritonUrl(tuple(answers))
    return await open_replicas(url, "fake", reader(answers), lambda _, spec: FakeEngine(spec), timeout_s, Metrics())


A, B = make_spec(), make_spec(max_batch_size=4)


@pytest.mark.parametrize(
    ("specs", "chosen"),
    [
        ([A, B, A], A),
        ([B, A, A], A),
        ([B, A], B),
        ([EngineUnavailable("away"), B], B),
        ([StartupError("broken"), A], A),
    ],
)
async def test_the_configuration_is_that_of_most(specs: Sequence[ModelSpec | Exception], chosen: ModelSpec) -> None:
    assert (await open_(dict(zip(("a:1", "b:1", "c:1"), specs, strict=False)))).spec == chosen


async def test_nobody_is_there_in_time() -> None:
    with pytest.raises(StartupError, match=r"fake ready after 0 s: a:1: away; b:1: broken$"):
        await open_({"a:1": EngineUnavailable("away"), "b:1": StartupError("broken")})


async def test_no_wait_for_models_that_are_of_no_use() -> None:
    with pytest.raises(StartupError, match="b:1: broken"):
        await open_({"a:1": StartupError("broken"), "b:1": StartupError("broken")}, timeout_s=1e6)
