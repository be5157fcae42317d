import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batch_queue import BatchQueue
from gateway.scheduler import LONGEST_CALL_S
from tests.gateway.simulation import Simulation, Text, closed_loop

CPU = {"call_s": 0.002, "token_s": 1.5e-4}  # all-MiniLM-L6-v2 on two cores
GPU = {"call_s": 0.001, "token_s": 5e-7, "max_batch_size": 64}  # a BERT-base plan on an H200


def make(max_delay_s: float = 1.0, most_rows: int = 4) -> BatchQueue[str]:
    return BatchQueue((8, 16, 32), [most_rows] * 3, max_delay_s)


def pop(
    queue: BatchQueue[str],
    now: float = 0.0,
    *,
    idle: bool = True,
    overhead_tokens: float = 0.0,
    most_tokens: float = math.inf,
    patience_s: float = 9.0,
) -> tuple[list[str], int]:
    return queue.pop_batch(
        now, idle=idle, overhead_tokens=overhead_tokens, most_tokens=most_tokens, patience_s=patience_s
    )


def test_an_idle_engine_takes_what_there_is() -> None:
    queue = make()
    assert pop(queue) == ([], 0)
    queue.push("a", 5, arrival=0, turn=0)
    assert pop(queue) == (["a"], 8)
    assert (queue.inputs, queue.tokens) == (0, 0)


def test_a_busy_engine_takes_full_batches_and_those_that_waited() -> None:
    queue = make(max_delay_s=1.0, most_rows=2)
    queue.push("a", 5, arrival=0, turn=0)
    assert queue.next_due() == 1.0
    assert pop(queue, 0.9, idle=False) == ([], 0)
    queue.push("b", 5, arrival=0.9, turn=0.9)
    assert pop(queue, 0.9, idle=False) == (["a", "b"], 8)
    queue.push("c", 5, arrival=0.9, turn=0.9)
    assert pop(queue, 2.0, idle=False) == (["c"], 8)
    assert queue.next_due() is None


def test_a_call_keeps_to_its_tokens_and_is_full_then() -> None:
    queue = make()
    for entry in "abcd":
        queue.push(entry, 5, arrival=0, turn=0)
    assert pop(queue, idle=False, most_tokens=17) == (["a", "b"], 8)
    assert pop(queue, idle=False, most_tokens=1) == (["c"], 8)
    assert pop(queue, idle=False, most_tokens=16) == ([], 0)


def test_turns_decide_within_a_bucket_and_arrival_among_equals() -> None:
    queue = make(most_rows=3)
    for entry, turn in (("late", 5.0), ("first", 1.0), ("second", 1.0), ("third", 2.0)):
        queue.push(entry, 5, arrival=0, turn=turn)
    assert pop(queue) == (["first", "second", "third"], 8)


def test_the_less_wasteful_batch_goes_first_until_patience_ends() -> None:
    queue = make()
    queue.push("wasteful", 9, arrival=0, turn=0)
    for entry in "abcd":
        queue.push(entry, 8, arrival=1, turn=1)
    assert pop(queue, 2.0, patience_s=3.0)[1] == 8
    for entry in "abcd":
        queue.push(entry, 8, arrival=2, turn=2)
    assert pop(queue, 3.5, patience_s=3.0) == (["wasteful"], 16)


@pytest.mark.parametrize(
    ("overhead_tokens", "joined"),
    [pytest.param(0.0, False, id="calls cost nothing"), pytest.param(1000.0, True, id="calls are dear")],
)
def test_shorter_entries_join_where_a_call_of_their_own_would_cost_more(overhead_tokens: float, joined: bool) -> None:
    queue = make()
    queue.push("long", 30, arrival=0, turn=0)
    queue.push("short", 5, arrival=0, turn=0)
    entries, _ = pop(queue, overhead_tokens=overhead_tokens)
    assert (sorted(entries) == ["long", "short"]) is joined


def test_discard_and_drain_keep_the_count() -> None:
    queue = make()
    for index, length in enumerate((3, 7, 12, 31)):
        queue.push(str(index), length, arrival=0, turn=index)
    queue.discard(lambda entry: entry in "13")
    assert (queue.inputs, queue.tokens) == (2, 15)
    assert sorted(queue.drain()) == ["0", "2"]
    assert (queue.inputs, queue.tokens, queue.next_due()) == (0, 0, None)


@given(
    lengths=st.lists(st.integers(1, 32), min_size=1, max_size=60),
    overhead_tokens=st.floats(0, 4096),
    most_rows=st.integers(1, 8),
    most_tokens=st.floats(0, 300),
    gone=st.sets(st.integers(0, 59)),
    seed=st.integers(0, 99),
)
def test_nothing_is_lost_doubled_or_too_long(
    lengths: list[int], overhead_tokens: float, most_rows: int, most_tokens: float, gone: set[int], seed: int
) -> None:
    queue = BatchQueue[int]((8, 16, 32), [most_rows] * 3, 1.0)
    order = random.Random(seed)
    for index, length in enumerate(lengths):
        queue.push(index, length, arrival=0, turn=order.random())
    queue.discard(lambda entry: entry in gone)
    stays = set(range(len(lengths))) - gone
    assert (queue.inputs, queue.tokens) == (len(stays), sum(lengths[index] for index in stays))
    taken: Counter[int] = Counter()
    while queue.inputs:
        entries, padded_length = queue.pop_batch(
            0.0, idle=True, overhead_tokens=overhead_tokens, most_tokens=most_tokens, patience_s=1.0
        )
        assert 1 <= len(entries) <= most_rows
        assert len(entries) == 1 or len(entries) * padded_length <= most_tokens
        assert max(lengths[index] for index in entries) <= padded_length
        taken.update(entries)
    assert taken == Counter(stays)
    assert queue.tokens == 0


@pytest.mark.parametrize("engine", [CPU, GPU], ids=["CPU", "GPU"])
@pytest.mark.parametrize("callers", [1, 64, 256])
def test_simulated_load_loses_nothing_and_pads_little(engine: dict[str, float], callers: int) -> None:
    simulation = Simulation(**engine)  # type: ignore[arg-type]
    closed_loop(simulation, callers, texts=4000, think_s=0.0005)
    assert len(simulation.answered) == 4000
    real = sum(tokens for _, _, tokens in simulation.calls)
    padded = sum(rows * length for rows, length, _ in simulation.calls)
    if callers >= 64:
        assert 1 - real / padded <= 0.30
        assert len(simulation.calls) <= 4000 / 8


@pytest.mark.parametrize("engine", [CPU, GPU], ids=["CPU", "GPU"])
def test_a_lone_odd_length_is_not_starved_by_better_batches(engine: dict[str, float]) -> None:
    simulation = Simulation(**engine)  # type: ignore[arg-type]
    odd: list[Text] = []
    simulation.at(0.5, lambda: odd.extend(simulation.submit([17])))

    def refill(_: Text) -> None:
        if simulation.now < 20:
            simulation.submit([256])

    for _ in range(200):
        simulation.at(0.0, lambda: simulation.submit([256]))
    simulation.run(refill)
    longest_call_s = simulation.call_s + simulation.token_s * max(rows * length for rows, length, _ in simulation.calls)
    # Patience is four mean calls; then a slot must fall free, and the call itself be made.
    assert odd[0].answered - odd[0].arrival <= 7 * longest_call_s


@pytest.mark.parametrize("engine", [CPU, GPU], ids=["CPU", "GPU"])
def test_small_requests_pass_large_ones_which_still_end(engine: dict[str, float]) -> None:
    simulation = Simulation(**engine)  # type: ignore[arg-type]
    closed_loop(simulation, 4, texts=200, think_s=0.0005)  # the engine's speed is known from here on
    lengths = random.Random(1)
    start = simulation.now + 1
    all_s = 8 * 512 * 100 * simulation.token_s / simulation.slots
    large: list[Text] = []
    small: list[Text] = []
    for _ in range(8):
        simulation.at(start, lambda: large.extend(simulation.submit([lengths.randint(3, 200) for _ in range(512)])))
    for index in range(100):
        at = start + all_s * (0.01 + index * 0.009)
        simulation.at(at, lambda: small.extend(simulation.submit([lengths.choice((5, 17, 100))])))
    simulation.run()
    longest_call_s = simulation.call_s + simulation.token_s * max(rows * length for rows, length, _ in simulation.calls)
    # A call of each length may go before, on two slots.
    assert max(text.answered - text.arrival for text in small) < 8 * longest_call_s
    assert max(text.answered for text in large) - start < 1.5 * all_s


def test_many_small_requests_leave_a_large_one_its_part() -> None:
    simulation = Simulation(**CPU)  # type: ignore[arg-type]
    large: list[Text] = []
    simulation.at(1, lambda: large.extend(simulation.submit([100] * 500)))
    closed_loop(simulation, 64, texts=10_000, think_s=0.0005)
    alone_s = 500 * 100 * simulation.token_s / simulation.slots
    # 9 parts beside at most 64 of one part each.
    assert max(text.answered for text in large) - 1 < 1.2 * alone_s * (64 + 9) / 9


def test_calls_of_bounded_time_cost_a_cpu_nothing() -> None:
    ended_s, longest_s = {}, {}
    for bound_s in (LONGEST_CALL_S, math.inf):
        simulation = Simulation(**CPU, longest_call_s=bound_s)  # type: ignore[arg-type]
        lengths = random.Random(1)
        for _ in range(8):
            simulation.submit([lengths.randint(3, 200) for _ in range(512)])
        simulation.run()
        ended_s[bound_s] = simulation.now
        longest_s[bound_s] = max(
            simulation.call_s + simulation.token_s * rows * length
            for rows, length, _ in simulation.calls[simulation.slots :]  # the first ones tell how long calls take
        )
    assert ended_s[LONGEST_CALL_S] < 1.03 * ended_s[math.inf]
    assert longest_s[LONGEST_CALL_S] < 1.1 * LONGEST_CALL_S < longest_s[math.inf]
