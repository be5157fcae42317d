import pytest

from gateway.virtual_time import VirtualTime, parts


@pytest.mark.parametrize(("inputs", "expected"), [(1, 1), (2, 2), (3, 2), (4, 3), (2048, 12)])
def test_parts_grow_with_each_doubling(inputs: int, expected: int) -> None:
    assert parts(inputs) == expected


def test_a_request_starts_now_and_goes_on_at_the_pace_of_its_parts() -> None:
    time = VirtualTime()
    assert list(time.turns([10, 20, 5])) == [0, 5, 15]
    time.advance(30, all_parts=3)
    assert list(time.turns([7])) == [10]


def test_equal_requests_take_turns() -> None:
    time = VirtualTime()
    turns = [(turn, name) for name in "ab" for turn in time.turns([10] * 3)]
    assert [name for _, name in sorted(turns)] == ["a", "b"] * 3


def test_a_newcomer_comes_before_what_is_left_of_those_before_it() -> None:
    time = VirtualTime()
    before = [turn for _ in range(8) for turn in time.turns([10] * 4)]
    time.advance(16 * 10, all_parts=8 * parts(4))  # half of it has run
    (turn,) = time.turns([10])
    assert sum(other >= turn for other in before) == 16
