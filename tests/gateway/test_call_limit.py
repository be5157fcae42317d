import math

import pytest

from gateway.call_limit import CallLimit


def run(limit: CallLimit, call_s: float, token_s: float, calls: int = 10, most_tokens: int = 8192) -> list[float]:
    """Make calls as long as they may be; return how long they took."""
    took_s = []
    for _ in range(calls):
        tokens = int(min(limit.tokens, most_tokens))
        took_s.append(call_s + token_s * tokens)
        limit.observe(tokens, took_s[-1], 1)
    return took_s


def test_where_tokens_take_time_calls_are_cut_to_it() -> None:
    assert run(CallLimit(0.25), 0.004, 1.5e-4)[1:] == pytest.approx([0.25] * 9, rel=0.05)


def test_short_calls_are_left_whole() -> None:
    limit = CallLimit(0.25)
    run(limit, 0.001, 5e-7)
    assert limit.tokens == math.inf


@pytest.mark.parametrize("most_tokens", [896, 2016, 8192])
def test_where_cutting_does_not_help_it_is_left_for_a_while(most_tokens: int) -> None:
    limit = CallLimit(0.25)
    run(limit, 0.4, 0.0, calls=2, most_tokens=most_tokens)  # a whole one, and one that was cut in vain
    assert limit.tokens == math.inf
    run(limit, 0.4, 0.0, calls=15, most_tokens=most_tokens)
    assert limit.tokens == math.inf


def test_a_cold_first_call_is_soon_forgotten() -> None:
    limit = CallLimit(0.25)
    limit.observe(600, 2.0, 1)
    assert limit.tokens == 512
    run(limit, 0.001, 5e-7)
    assert limit.tokens > 8192


def test_a_call_beside_another_is_not_slow_for_having_been_cut() -> None:
    limit = CallLimit(0.25)
    limit.observe(8192, 1.0, 1)
    limit.observe(2048, 0.5, 2)
    assert limit.tokens == 1024


def test_small_calls_tell_nothing() -> None:
    limit = CallLimit(0.25)
    limit.observe(16, 1.0, 1)
    assert limit.tokens == math.inf


def test_never_fewer_than_are_worth_a_call() -> None:
    limit = CallLimit(0.25)
    run(limit, 0.0, 1e-2)
    assert limit.tokens == 512
