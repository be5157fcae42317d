"""What the engine may get wrong: the caller gets an error and never a vector, and a counter tells."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.reliability.callers import ask, sample, wait_until
from tests.stub_gateway import HIDDEN_SIZE, StubGateway, answer
from tests.stub_triton import Arrays

NAME = "last_hidden_state"


def spoil(row: int, value: float) -> Callable[[Arrays], Arrays]:
    def spoilt(inputs: Arrays) -> Arrays:
        hidden = answer(inputs)[NAME]
        hidden[row, 0] = value
        return {NAME: hidden}

    return spoilt


def reshape(*shape: int, dtype: type = np.float32) -> Callable[[Arrays], Arrays]:
    return lambda _: {NAME: np.zeros(shape, dtype)}


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(stub_gateway: StubGateway, encoding_format: str, value: float) -> None:
    url = stub_gateway.gateway.url
    before = sample(url, "bad_outputs_total")
    stub_gateway.triton.answer = spoil(1, value)
    bad = ask(url, ["a tree", "a house", "a river"], encoding_format=encoding_format)
    assert (bad.status, bad.code) == (500, "engine_bad_output")
    assert "input 1" in bad.document["error"]["message"]
    assert sample(url, "bad_outputs_total") == before + 1
    stub_gateway.triton.answer = answer
    assert ask(url, "a house", encoding_format=encoding_format).status == 200


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(reshape(1, 16, HIDDEN_SIZE - 1), id="another width"),
        pytest.param(reshape(1, HIDDEN_SIZE), id="another rank"),
        pytest.param(reshape(0, 16, HIDDEN_SIZE), id="empty"),
        pytest.param(reshape(2, 16, HIDDEN_SIZE), id="a row too many"),
        pytest.param(reshape(1, 16, HIDDEN_SIZE, dtype=np.int32), id="integers"),
        pytest.param(reshape(1, 16, HIDDEN_SIZE, dtype=np.float64), id="doubles"),
        pytest.param(lambda _: {"other": np.zeros((1, 16, HIDDEN_SIZE), np.float32)}, id="another name"),
        pytest.param(lambda _: {}, id="none"),
    ],
)
def test_a_wrong_tensor(stub_gateway: StubGateway, tensor: Callable[[Arrays], Arrays]) -> None:
    url = stub_gateway.gateway.url
    before = sample(url, "bad_outputs_total")
    stub_gateway.triton.answer = tensor
    bad = ask(url, "a tree")
    assert (bad.status, bad.code) == (500, "engine_bad_output")
    assert sample(url, "bad_outputs_total") >= before + 1
    # An engine that mixes up its answers is not asked again before it passes its self-check.
    assert ask(url, "a tree").status == 503
    stub_gateway.triton.answer = answer
    wait_until(lambda: ask(url, "a tree").status == 200, 5)


def test_nan_at_padded_positions_does_not_count(stub_gateway: StubGateway) -> None:
    # The stub answers NaN there, always.
    assert ask(stub_gateway.gateway.url, ["a tree", "a tree with many more words behind it"]).status == 200
