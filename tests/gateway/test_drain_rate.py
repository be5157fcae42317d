import pytest

from gateway.drain_rate import DrainRate


def complete(rate: DrainRate, tokens: int, now: float, *, left_others: bool = True) -> None:
    rate.completed(tokens, now - 0.2, now, calls=2, left_others=left_others)


def test_unknown_until_a_call_left_others_behind() -> None:
    rate = DrainRate()
    for second in range(10):
        complete(rate, 100, second, left_others=False)
    assert rate.tokens_per_s == 0


def test_the_first_guess_is_from_one_call() -> None:
    rate = DrainRate()
    complete(rate, 100, 1.0)
    assert rate.tokens_per_s == pytest.approx(1000)


def test_follows_the_engine() -> None:
    rate = DrainRate()
    for step in range(200):
        complete(rate, 300, step / 10)
    assert rate.tokens_per_s == pytest.approx(3000, rel=0.01)
    for step in range(200):
        complete(rate, 10, 20 + step / 10)
    assert rate.tokens_per_s == pytest.approx(100, rel=0.01)


def test_idle_time_does_not_count() -> None:
    rate = DrainRate()
    for start in range(0, 1000, 100):
        for step in range(20):
            complete(rate, 200, start + step / 10, left_others=step < 19)
    assert rate.tokens_per_s == pytest.approx(2000, rel=0.01)
