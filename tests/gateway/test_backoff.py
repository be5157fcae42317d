"""How pauses between tries grow."""

from gateway.backoff import Backoff


def test_twice_as_long_each_time_up_to_half_a_minute() -> None:
    backoff = Backoff()
    assert [backoff.next_s() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_from_the_shortest_after_a_success() -> None:
    backoff = Backoff()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 1
