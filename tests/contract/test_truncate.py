"""The edge of the model's context: 256 tokens, two of them special, for the demo model."""

import numpy as np
import pytest

from tests.contract.caller import Caller

MOST = 254
"""Content tokens that fit."""


def words(count: int, first: str = "tree") -> str:
    """Return a text of that many tokens."""
    return " ".join([first] + ["river"] * (count - 1))


@pytest.mark.parametrize("count", [MOST - 1, MOST])
@pytest.mark.parametrize("truncate", [None, "NONE", "END", "START"])
def test_what_fits_is_untouched(caller: Caller, count: int, truncate: str | None) -> None:
    response = caller.ask(words(count), truncate=truncate)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == count + 2
    assert "x-truncated-inputs" not in response.headers


@pytest.mark.parametrize("count", [MOST + 1, MOST + 2, 5000])
def test_longer_is_refused_alike_alone_and_in_a_list(caller: Caller, count: int) -> None:
    text = words(count)
    for value, param in ((text, "input[0]"), ([text], "input[0]"), (["tree", text, text], "input[1]")):
        error = caller.refused(value)
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert f"{count + 2} tokens" in error["message"]
        assert "256" in error["message"]


@pytest.mark.parametrize("count", [MOST + 1, MOST + 2, 5000])
@pytest.mark.parametrize("truncate", ["END", "START"])
def test_longer_is_cut_alike_alone_and_in_a_list(caller: Caller, count: int, truncate: str) -> None:
    kept = words(MOST) if truncate == "END" else " ".join(["river"] * MOST)
    expected = caller.embed(kept)[0]
    cut = caller.metric("gateway_truncated_inputs_total")
    for value in (words(count), [words(count)], [kept, words(count), kept]):
        response = caller.ask(value, truncate=truncate)
        inputs = 1 if isinstance(value, str) else len(value)
        assert response.json()["usage"]["prompt_tokens"] == 256 * inputs
        assert response.headers["x-truncated-inputs"] == "1"
        for row in response.json()["data"]:
            np.testing.assert_allclose(np.array(row["embedding"]), expected, atol=1e-5)
    assert caller.metric("gateway_truncated_inputs_total") == cut + 3


def test_token_ids_are_cut_as_texts_are(caller: Caller) -> None:
    tree, river = 3392, 2314
    ids = [tree] + [river] * 400
    assert caller.refused(ids)["code"] == "context_length_exceeded"
    np.testing.assert_allclose(caller.embed(ids, truncate="END"), caller.embed(words(MOST)), atol=1e-5)


@pytest.mark.parametrize("value", ["end", "MIDDLE", "", True, 1])
def test_another_way_to_cut(caller: Caller, value: object) -> None:
    assert caller.refused("tree", truncate=value)["param"] == "truncate"
