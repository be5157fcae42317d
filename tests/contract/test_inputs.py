"""What may stand in `input`, and what is told of the rest. The whole matrix of types is in test_schemas.py."""

from typing import Any

import numpy as np
import pytest

from tests.contract.caller import Caller

VOCAB_SIZE = 30_522
HELLO_WORLD = [7592, 1010, 2088]
"""`hello, world` in the demo model's vocabulary, without special tokens."""


def test_all_four_kinds(caller: Caller) -> None:
    alone, tokens = caller.embed_counting("hello, world")
    assert alone.shape == (1, 384)
    assert tokens == 5
    for value in (["hello, world"], HELLO_WORLD, [HELLO_WORLD]):
        vectors, counted = caller.embed_counting(value)
        assert counted == tokens
        np.testing.assert_array_equal(vectors, alone)
    several = caller.embed([HELLO_WORLD, HELLO_WORLD[2:], HELLO_WORLD])
    np.testing.assert_allclose(several, caller.embed(["hello, world", "world", "hello, world"]), atol=1e-5)


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        pytest.param("", "input", "empty_input", id="empty-text"),
        pytest.param([], "input", "empty_input", id="empty-list"),
        pytest.param([""], "input[0]", "empty_input", id="empty-item"),
        pytest.param(["ok", ""], "input[1]", "empty_input", id="second-empty"),
        pytest.param([[]], "input[0]", "empty_input", id="empty-ids"),
        pytest.param([HELLO_WORLD, []], "input[1]", "empty_input", id="second-empty-ids"),
        pytest.param(None, "input", None, id="null"),
        pytest.param(5, "input", None, id="number"),
        pytest.param(True, "input", None, id="bool"),
        pytest.param({"text": "a"}, "input", None, id="object"),
        pytest.param(["a", None], "input[1]", None, id="null-item"),
        pytest.param(["a", 5], "input[1]", None, id="number-item"),
        pytest.param(["a", ["b"]], "input[1]", None, id="list-item"),
        pytest.param([[[1]]], "input[0]", None, id="too-deep"),
        pytest.param([-1], "input[0]", "invalid_token_ids", id="negative"),
        pytest.param([VOCAB_SIZE], "input[0]", "invalid_token_ids", id="vocabulary-size"),
        pytest.param([HELLO_WORLD, [VOCAB_SIZE]], "input[1]", "invalid_token_ids", id="second-out-of-range"),
        pytest.param([5279552648203111001], "input[0]", "invalid_token_ids", id="huge"),
        pytest.param([10**25], "input[0]", None, id="26-digits"),
        pytest.param([True, False], "input[0]", None, id="bools"),
        pytest.param(["1", 2], "input[1]", None, id="text-and-id"),
        pytest.param([1, "2"], "input[1]", None, id="id-and-text"),
        pytest.param([1.0, 2.0], "input[0]", None, id="floats"),
        pytest.param([1.5], "input[0]", None, id="fraction"),
        pytest.param([HELLO_WORLD, ["a"]], "input[1]", None, id="texts-among-ids"),
        pytest.param([8586, 374, 1063, 1495], "input[0]", "invalid_token_ids", id="foreign"),
        pytest.param([[8586, 374], [1063]], "input[0]", "invalid_token_ids", id="foreign-lists"),
    ],
)
def test_refused_before_triton(caller: Caller, value: Any, param: str, code: str | None) -> None:
    before = caller.metric("gateway_batch_rows_count")
    error = caller.refused(value)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert caller.metric("gateway_batch_rows_count") == before
    assert caller.ask("ok").status_code == 200


def test_input_twice(caller: Caller) -> None:
    for key in ('"input"', r'"\u0069nput"'):
        response = caller.post(f'{{"model": "all-MiniLM-L6-v2", "input": "a", {key}: "b"}}')
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "input"


@pytest.mark.parametrize("value", [" ", "\n\t", ["ok", "   "], [" ", "\n\t", "\u3000"]])
def test_whitespace_is_an_input(caller: Caller, value: str | list[str]) -> None:
    values = [value] if isinstance(value, str) else value
    vectors, tokens = caller.embed_counting(value)
    assert tokens == sum(2 if text.isspace() else 3 for text in values)
    np.testing.assert_allclose(vectors[-1], caller.embed(" ")[0], atol=1e-5)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\ud83d hi", "\ufffd hi"),
        (r"\udc00", "\ufffd"),
        (r"a\ud83d\ud83d\ude00", "a\ufffd😀"),
        (r"\ud83d\ude00", "😀"),
    ],
)
def test_surrogates(caller: Caller, escaped: str, text: str) -> None:
    response = caller.post(f'{{"model": "all-MiniLM-L6-v2", "input": ["ok", "{escaped}"]}}')
    assert response.status_code == 200
    expected = caller.ask(["ok", text])
    assert response.json() == expected.json()


def test_a_surrogate_and_a_bad_item(caller: Caller) -> None:
    response = caller.post(r'{"model": "all-MiniLM-L6-v2", "input": ["\ud83d", null]}')
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input[1]"


def test_order_with_duplicates(caller: Caller) -> None:
    texts = [f"{'river ' * (i % 37)}house {i % 60}" for i in range(100)]
    vectors = caller.embed(texts)
    for index in range(40):
        np.testing.assert_allclose(vectors[index], vectors[texts.index(texts[index])], atol=1e-5)
    for index in range(0, 100, 9):
        np.testing.assert_allclose(vectors[index], caller.embed(texts[index])[0], atol=1e-5)
    same = caller.embed([texts[3], "between", texts[3], texts[3]])
    np.testing.assert_allclose(same[[2, 3]], same[[0, 0]], atol=1e-5)
