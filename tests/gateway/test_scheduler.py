import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import EngineRejected, EngineTimeout, EngineUnavailable
from gateway.metrics import Metrics
from gateway.scheduler import Scheduler
from gateway.types import Encoding, OutputKind
from tests.fakes import FakeEngine, encoding, expected_rows, make_spec

MakeScheduler = Callable[..., Scheduler]


def make(engine: FakeEngine, executor: ThreadPoolExecutor, **options: Any) -> Scheduler:
    options = {"slots": 2, "max_batch_tokens": 10_000, "max_delay_s": 0.005, **options}
    return Scheduler(engine, executor=executor, metrics=Metrics(["m"]), model="m", **options)


@pytest.fixture
async def make_scheduler() -> AsyncIterator[MakeScheduler]:
    made = []
    with ThreadPoolExecutor(1) as executor:

        def factory(engine: FakeEngine, **options: Any) -> Scheduler:
            made.append(make(engine, executor, **options))
            return made[-1]

        yield factory
        for scheduler in made:
            await scheduler.close()


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def some(count: int, seed: int = 0, longest: int = 32) -> list[Encoding]:
    rng = np.random.default_rng(seed)
    return [encoding(*rng.integers(1, 1000, rng.integers(1, longest + 1))) for _ in range(count)]


async def test_rows_come_back_in_input_order_whatever_their_lengths(make_scheduler: MakeScheduler) -> None:
    encodings = some(100)
    rows, _ = await make_scheduler(FakeEngine()).run(encodings, soon())
    np.testing.assert_allclose(rows, expected_rows(encodings), rtol=1e-5, atol=1e-6)


async def test_batches_keep_to_the_engine_and_the_token_budget(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine()
    await make_scheduler(engine, max_batch_tokens=64).run(some(200), soon())
    for batch in engine.batches:
        rows, length = batch.input_ids.shape
        assert length in engine.spec.length_buckets
        assert rows <= engine.spec.max_batch_size
        assert rows * length <= 64


async def test_requests_of_the_same_turn_share_a_batch(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine()
    scheduler = make_scheduler(engine)
    await asyncio.gather(*(scheduler.run([encoding(1, 2, 3)], soon()) for _ in range(8)))
    assert [len(batch.input_ids) for batch in engine.batches] == [8]


async def test_a_lone_request_leaves_at_once(make_scheduler: MakeScheduler) -> None:
    _, timings = await make_scheduler(FakeEngine()).run([encoding(1)], soon())
    assert timings.queue_s < 0.05


async def test_slots_come_and_go(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    scheduler = make_scheduler(engine, slots=1, max_batch_tokens=32, max_delay_s=0)
    assert engine.gate

    async def run() -> None:
        encodings = some(20)
        rows, _ = await scheduler.run(encodings, soon())
        np.testing.assert_allclose(rows, expected_rows(encodings), rtol=1e-5, atol=1e-6)

    running = asyncio.create_task(run())
    await asyncio.sleep(0.01)
    assert engine.running == 1
    scheduler.resize(3)
    await asyncio.sleep(0.01)
    assert engine.running == 3
    scheduler.resize(1)
    started = len(engine.batches)
    engine.gate.set()
    await running
    assert len(engine.batches) > started
    assert engine.most_running == 3

    engine.most_running = 0
    await run()
    assert engine.most_running == 1


async def test_no_more_calls_than_slots(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(delay_s=0.001)
    await make_scheduler(engine, slots=3, max_delay_s=0).run(some(200), soon())
    assert engine.most_running == 3


async def test_one_text_does_not_wait_for_all_of_a_large_request(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(delay_s=0.002)
    scheduler = make_scheduler(engine, slots=1)
    await scheduler.run(some(50), soon())  # the engine's speed is known from here on
    before = len(engine.batches)
    large = asyncio.create_task(scheduler.run(some(800), soon(30)))
    await asyncio.sleep(0.01)
    await scheduler.run([encoding(1, 2, 3)], soon())
    calls_until_answered = len(engine.batches) - before
    await large
    assert calls_until_answered < 0.2 * (len(engine.batches) - before)


async def test_a_newcomer_passes_many_requests_that_wait(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(delay_s=0.002)
    scheduler = make_scheduler(engine, slots=1)
    large = [asyncio.create_task(scheduler.run(some(200, seed), soon(30))) for seed in range(8)]
    await asyncio.sleep(0.05)
    before = len(engine.batches)
    await scheduler.run([encoding(1, 2, 3)], soon())
    calls_until_answered = len(engine.batches) - before
    await asyncio.gather(*large)
    assert calls_until_answered < 0.2 * (len(engine.batches) - before)


async def test_calls_are_cut_to_what_the_engine_does_in_their_time(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.scheduler.LONGEST_CALL_S", 0.1)
    engine = FakeEngine(make_spec(max_batch_size=64, length_buckets=(32,)))
    scheduler = make_scheduler(engine, slots=1)
    text = encoding(*range(1, 33))
    for rows, delay_s in ((1, 0.0), (64, 0.2)):
        engine.delay_s = delay_s
        await scheduler.run([text] * rows, soon())
    engine.delay_s = 0.0
    await scheduler.run([text] * 64, soon())
    rows_of_calls = [len(batch.input_ids) for batch in engine.batches]
    assert rows_of_calls[:2] == [1, 64]
    assert 16 <= rows_of_calls[2] <= 40  # about half: the timer may be late
    # Single texts of many callers are none of them in another's way.
    engine.batches.clear()
    await asyncio.gather(*(scheduler.run([text], soon()) for _ in range(64)))
    assert [len(batch.input_ids) for batch in engine.batches] == [64]


async def test_a_batch_that_is_not_full_waits_for_company_while_the_engine_is_busy(
    make_scheduler: MakeScheduler,
) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    scheduler = make_scheduler(engine, slots=2, max_delay_s=0.2)
    tasks = []
    for ids in (1, 2, 3):
        tasks.append(asyncio.create_task(scheduler.run([encoding(ids)], soon())))
        await asyncio.sleep(0.01)
    assert [len(batch.input_ids) for batch in engine.batches] == [1]  # the first found the engine idle
    await asyncio.sleep(0.3)
    assert [len(batch.input_ids) for batch in engine.batches] == [1, 2]  # the bound, though a call is still under way
    assert engine.gate
    engine.gate.set()
    await asyncio.gather(*tasks)


async def test_a_full_batch_waits_for_nothing_but_a_slot(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    scheduler = make_scheduler(engine, slots=2, max_delay_s=60)
    tasks = [asyncio.create_task(scheduler.run([encoding(1)], soon()))]
    await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(scheduler.run([encoding(1)] * 8, soon())))
    await asyncio.sleep(0.01)
    assert [len(batch.input_ids) for batch in engine.batches] == [1, 8]
    assert engine.gate
    engine.gate.set()
    await asyncio.gather(*tasks)


async def test_what_waits_leaves_when_the_engine_falls_idle(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(delay_s=0.02)
    scheduler = make_scheduler(engine, slots=2, max_delay_s=60)
    await asyncio.gather(scheduler.run([encoding(1)], soon()), scheduler.run([encoding(*range(1, 20))], soon()))


async def test_pooled_outputs_pass_through(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(spec=make_spec(output_kind=OutputKind.SENTENCE_EMBEDDING, output="sentence_embedding"))
    encodings = some(20)
    rows, _ = await make_scheduler(engine).run(encodings, soon())
    np.testing.assert_allclose(rows, expected_rows(encodings), rtol=1e-5, atol=1e-6)


async def test_large_outputs_are_pooled_in_a_thread(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.scheduler._INLINE_POOLING_VALUES", 0)
    encodings = some(20)
    rows, _ = await make_scheduler(FakeEngine()).run(encodings, soon())
    np.testing.assert_allclose(rows, expected_rows(encodings), rtol=1e-5, atol=1e-6)


async def test_a_failed_call_fails_its_request_and_frees_its_slot(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(error=EngineRejected("no"))
    scheduler = make_scheduler(engine, slots=1)
    with pytest.raises(EngineRejected):
        await scheduler.run(some(50), soon())
    assert (scheduler.queued_inputs, scheduler.queued_tokens) == (0, 0)
    calls = len(engine.batches)
    assert calls <= 2  # the rest was dropped
    engine.error = None
    await scheduler.run([encoding(1)], soon())


async def test_an_unforeseen_error_reaches_the_caller(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler(FakeEngine(error=ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        await scheduler.run([encoding(1)], soon())


async def test_the_deadline_ends_a_request_and_its_call(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    scheduler = make_scheduler(engine, slots=1)
    with pytest.raises(EngineTimeout):
        await scheduler.run(some(20), soon(0.05))
    await asyncio.sleep(0)
    assert (engine.running, engine.cancelled, scheduler.queued_inputs, scheduler.queued_tokens) == (0, 1, 0, 0)


async def test_a_cancelled_request_takes_its_entries_along(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    scheduler = make_scheduler(engine, slots=1)
    gone = asyncio.create_task(scheduler.run(some(20), soon()))
    await asyncio.sleep(0.01)
    stays = asyncio.create_task(scheduler.run([encoding(1, 2)], soon()))
    await asyncio.sleep(0.01)
    gone.cancel()
    assert engine.gate
    engine.gate.set()
    rows, _ = await stays
    np.testing.assert_allclose(rows, expected_rows([encoding(1, 2)]), rtol=1e-6)
    assert engine.cancelled == 1
    assert gone.cancelled()
    assert len(engine.batches) == 2


async def test_a_call_goes_on_while_one_of_its_callers_waits(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    scheduler = make_scheduler(engine, slots=1)
    gone = asyncio.create_task(scheduler.run([encoding(1)], soon()))
    stays = asyncio.create_task(scheduler.run([encoding(2)], soon()))
    await asyncio.sleep(0.01)
    gone.cancel()
    assert engine.gate
    engine.gate.set()
    await stays
    assert (len(engine.batches), engine.cancelled) == (1, 0)


async def test_a_call_cancelled_before_its_first_step_frees_its_slot(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine()
    scheduler = make_scheduler(engine, slots=1)
    gone = asyncio.create_task(scheduler.run([encoding(1)], soon()))
    await asyncio.sleep(0)  # submitted
    asyncio.get_running_loop().call_soon(gone.cancel)  # runs right after the dispatch
    with pytest.raises(asyncio.CancelledError):
        await gone
    await scheduler.run([encoding(2)], soon())
    await scheduler.run([encoding(2)], soon())


async def test_close_fails_what_waits_and_what_comes(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    scheduler = make_scheduler(engine, slots=1)
    waiting = asyncio.create_task(scheduler.run(some(20), soon()))
    await asyncio.sleep(0.01)
    await scheduler.close()
    with pytest.raises(EngineUnavailable):
        await waiting
    with pytest.raises(EngineUnavailable):
        await scheduler.run([encoding(1)], soon())
    assert engine.running == 0


@settings(deadline=None, max_examples=50)
@given(
    requests=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=12),
    slots=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_nothing_is_lost_or_mixed_up(requests: list[tuple[int, bool]], slots: int, seed: int) -> None:
    async def scenario() -> None:
        engine = FakeEngine(delay_s=0.0005)
        with ThreadPoolExecutor(1) as executor:
            scheduler = make(engine, executor, slots=slots, max_batch_tokens=128)
            work = [some(count, seed + i) for i, (count, _) in enumerate(requests)]
            tasks = [asyncio.create_task(scheduler.run(encodings, soon())) for encodings in work]
            await asyncio.sleep(0.001)
            for task, (_, leaves) in zip(tasks, requests, strict=True):
                if leaves:
                    task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            for answer, encodings, (_, leaves) in zip(answers, work, requests, strict=True):
                if isinstance(answer, BaseException):
                    assert leaves
                    assert isinstance(answer, asyncio.CancelledError)
                else:
                    np.testing.assert_allclose(answer[0], expected_rows(encodings), rtol=1e-4, atol=1e-5)
            await asyncio.sleep(0.002)
            assert (scheduler.queued_inputs, scheduler.queued_tokens, engine.running) == (0, 0, 0)
            await scheduler.close()

    asyncio.run(scenario())


async def test_timings_add_up(make_scheduler: MakeScheduler) -> None:
    engine = FakeEngine(delay_s=0.02)
    started = time.perf_counter()
    _, timings = await make_scheduler(engine, slots=1).run([encoding(*range(1, n)) for n in (3, 30)], soon())
    assert timings.infer_s >= 0.02
    assert timings.queue_s >= 0.02  # the second bucket waited for the first
    assert timings.queue_s + timings.infer_s <= time.perf_counter() - started
