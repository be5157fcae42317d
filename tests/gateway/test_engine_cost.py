import random

import pytest

from gateway.engine_cost import EngineCost


def learn(call_s: float, token_s: float, sizes: list[int], noise: float = 0.0) -> EngineCost:
    cost, random_noise = EngineCost(), random.Random(0)
    for size in sizes:
        cost.observe(size, (call_s + token_s * size) * (1 + random_noise.uniform(-noise, noise)))
    return cost


SIZES = random.Random(1).choices(range(100, 8000), k=200)


@pytest.mark.parametrize(("call_s", "token_s"), [(0.001, 5e-7), (0.0005, 5e-7)])
def test_the_overhead_is_found(call_s: float, token_s: float) -> None:
    assert learn(call_s, token_s, SIZES).overhead_tokens == pytest.approx(call_s / token_s, rel=0.01)
    assert learn(call_s, token_s, SIZES, noise=0.05).overhead_tokens == pytest.approx(call_s / token_s, rel=0.5)


def test_it_follows_a_change() -> None:
    cost = learn(0.001, 1e-6, SIZES)
    for size in SIZES * 2:
        cost.observe(size, 0.002 + 1e-6 * size)
    assert cost.overhead_tokens == pytest.approx(2000, rel=0.05)


@pytest.mark.parametrize("sizes", [[], [512], [512] * 100], ids=["no call", "one call", "calls of one size"])
def test_without_different_sizes_it_stays_at_a_sensible_guess(sizes: list[int]) -> None:
    assert 256 <= learn(0.001, 1e-6, sizes).overhead_tokens <= 4096


def test_it_is_bounded() -> None:
    assert learn(0.0, 1e-4, SIZES).overhead_tokens == 256
    assert learn(1.0, 1e-7, SIZES).overhead_tokens == 4096
    falling = EngineCost()
    for size in SIZES:
        falling.observe(size, 1 / size)
    assert 256 <= falling.overhead_tokens <= 4096


def test_the_mean() -> None:
    assert learn(0.0, 1e-4, [1000] * 10).call_s == pytest.approx(0.1)
    assert EngineCost().call_s == 0
