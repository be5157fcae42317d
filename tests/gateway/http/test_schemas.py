import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EmptyInput, GatewayError, InvalidDimensions, InvalidRequest, TooManyInputs
from gateway.http.schemas import EmbeddingsCall, parse_embeddings_request, read_inputs
from gateway.types import Truncate

MAX_INPUTS = 2048
HUGE = 5279552648203111001


def parse(**fields: Any) -> EmbeddingsCall:
    return parse_bytes(json.dumps({"model": "m", "input": "a"} | fields).encode())


def parse_bytes(body: bytes) -> EmbeddingsCall:
    return parse_embeddings_request(body, max_inputs=MAX_INPUTS, max_tokens=300_000)


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("a", ["a"], id="text"),
        pytest.param(" ", [" "], id="whitespace"),
        pytest.param("\n\t", ["\n\t"], id="newline"),
        pytest.param(["a", "b", "a"], ["a", "b", "a"], id="texts"),
        pytest.param(["ok", "   "], ["ok", "   "], id="whitespace-in-list"),
        pytest.param([1, 2, 3], [[1, 2, 3]], id="ids-are-one-input"),
        pytest.param([0], [[0]], id="id-zero"),
        pytest.param([[1, 2], [3]], [[1, 2], [3]], id="lists-of-ids"),
        pytest.param([-1, HUGE], [[-1, HUGE]], id="out-of-range-is-the-embedders"),
        pytest.param(["a"] * MAX_INPUTS, ["a"] * MAX_INPUTS, id="most-texts"),
        pytest.param([1] * 5000, [[1] * 5000], id="many-ids-are-one-input"),
        pytest.param("\x00", ["\x00"], id="nul"),
        pytest.param("😀", ["😀"], id="emoji"),
    ],
)
def test_inputs(value: Any, inputs: Any) -> None:
    assert parse(input=value).inputs == inputs


@pytest.mark.parametrize(
    ("value", "kind", "param"),
    [
        pytest.param("", EmptyInput, "input", id="empty-text"),
        pytest.param([], EmptyInput, "input", id="empty-list"),
        pytest.param([""], EmptyInput, "input[0]", id="empty-item"),
        pytest.param(["ok", ""], EmptyInput, "input[1]", id="second-empty"),
        pytest.param([[]], EmptyInput, "input[0]", id="empty-ids"),
        pytest.param([[1], []], EmptyInput, "input[1]", id="second-empty-ids"),
        pytest.param(["a"] * 2049, TooManyInputs, "input", id="too-many-texts"),
        pytest.param([[1]] * 2049, TooManyInputs, "input", id="too-many-lists"),
        pytest.param([None] * 2049, TooManyInputs, "input", id="length-before-types"),
        pytest.param([""] * 2049, TooManyInputs, "input", id="length-before-emptiness"),
        pytest.param(None, InvalidRequest, "input", id="null"),
        pytest.param(5, InvalidRequest, "input", id="number"),
        pytest.param(True, InvalidRequest, "input", id="bool"),
        pytest.param({"text": "a"}, InvalidRequest, "input", id="object"),
        pytest.param(["a", None], InvalidRequest, "input[1]", id="null-item"),
        pytest.param([None, "a"], InvalidRequest, "input[0]", id="null-first"),
        pytest.param(["a", 5], InvalidRequest, "input[1]", id="number-among-texts"),
        pytest.param(["a", ["b"]], InvalidRequest, "input[1]", id="list-among-texts"),
        pytest.param([["a"]], InvalidRequest, "input[0]", id="texts-in-list"),
        pytest.param([{"text": "a"}], InvalidRequest, "input[0]", id="objects"),
        pytest.param([True, False], InvalidRequest, "input[0]", id="bools"),
        pytest.param([1, True], InvalidRequest, "input[1]", id="bool-among-ids"),
        pytest.param([1, "2"], InvalidRequest, "input[1]", id="text-among-ids"),
        pytest.param(["1", 2], InvalidRequest, "input[1]", id="id-among-texts"),
        pytest.param([1.0, 2.0], InvalidRequest, "input[0]", id="floats"),
        pytest.param([1, 2.0], InvalidRequest, "input[1]", id="float-among-ids"),
        pytest.param([1.5], InvalidRequest, "input[0]", id="fraction"),
        pytest.param([10**26], InvalidRequest, "input[0]", id="26-digits"),
        pytest.param([1, None], InvalidRequest, "input[1]", id="null-among-ids"),
        pytest.param([[1], ["a"]], InvalidRequest, "input[1]", id="texts-among-lists"),
        pytest.param([[1], 2], InvalidRequest, "input[1]", id="id-among-lists"),
        pytest.param([[1], "a"], InvalidRequest, "input[1]", id="text-among-lists"),
        pytest.param([[1, True]], InvalidRequest, "input[0]", id="bool-in-list"),
        pytest.param([[[1]]], InvalidRequest, "input[0]", id="too-deep"),
    ],
)
def test_bad_inputs(value: Any, kind: type[GatewayError], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse(input=value)
    assert type(error.value) is kind
    assert error.value.param == param


def test_null_means_absent() -> None:
    nulls = dict.fromkeys(["encoding_format", "dimensions", "user", "truncate", "input_type"])
    assert parse(**nulls) == parse()
    for name in nulls:
        assert parse(**{name: None}) == parse()


def test_defaults() -> None:
    assert parse() == EmbeddingsCall("m", ["a"], "float", None, Truncate.NONE, None)


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"encoding_format": "float"}, "encoding_format", "float"),
        ({"encoding_format": "base64"}, "encoding_format", "base64"),
        ({"dimensions": 1}, "dimensions", 1),
        ({"dimensions": 1536}, "dimensions", 1536),
        ({"truncate": "NONE"}, "truncate", Truncate.NONE),
        ({"truncate": "END"}, "truncate", Truncate.END),
        ({"truncate": "START"}, "truncate", Truncate.START),
        ({"input_type": "query"}, "input_type", "query"),
        ({"model": "moka-ai/m3e-base"}, "model", "moka-ai/m3e-base"),
        ({"user": {"any": "thing"}}, "model", "m"),
        ({"unknown": {"input": [None]}}, "inputs", ["a"]),
    ],
)
def test_fields(fields: dict[str, Any], attribute: str, value: Any) -> None:
    assert getattr(parse(**fields), attribute) == value


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *[("model", value) for value in (None, "", 5, True, ["m"], {"id": "m"})],
        *[("encoding_format", value) for value in ("md5", "ubyte", "", "FLOAT", 1, ["float"], False)],
        *[("truncate", value) for value in ("end", "MIDDLE", True, 1, "")],
        *[("input_type", value) for value in (1, True, ["query"])],
    ],
)
def test_bad_fields(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse(**{param: value})
    assert error.value.param == param
    assert error.value.code is None


@pytest.mark.parametrize("value", [0, -1, "768", 768.5, 768.0, True, False, [768], 10**30, -(10**30)])
def test_bad_dimensions(value: Any) -> None:
    with pytest.raises(InvalidDimensions) as error:
        parse(dimensions=value)
    assert error.value.param == "dimensions"


@pytest.mark.parametrize("missing", ["model", "input"])
def test_missing_fields(missing: str) -> None:
    body = {"model": "m", "input": "a"}
    del body[missing]
    with pytest.raises(InvalidRequest) as error:
        parse_bytes(json.dumps(body).encode())
    assert error.value.param == missing


@pytest.mark.parametrize("field", ["model", "input", "encoding_format", "dimensions", "truncate", "input_type"])
def test_errors_do_not_repeat_what_was_sent(field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse(**{field: {"secret": "secret" * 1000}})
    assert "secret" not in error.value.message
    assert len(error.value.message) < 500


def test_surrogate_halves_and_the_pair() -> None:
    assert parse_bytes(rb'{"model":"m","input":["ok","\udc00"]}').inputs == ["ok", "\ufffd"]
    assert parse_bytes(rb'{"model":"m","input":"\ud83d\ude00"}') == parse(input="😀")


def test_surrogate_half_and_a_bad_item() -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_bytes(rb'{"model":"m","input":["\ud83d",null]}')
    assert error.value.param == "input[1]"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)


def assert_valid_or_refused(body: bytes) -> None:
    try:
        call = parse_bytes(body)
    except InvalidRequest:
        return
    assert call.inputs
    assert all(call.inputs)
    assert call.model


@given(_json)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    assert_valid_or_refused(json.dumps(value).encode())


@given(st.fixed_dictionaries({"input": _json, "model": _json}, optional={"dimensions": _json, "truncate": _json}))
def test_any_fields_are_parsed_or_refused(fields: dict[str, Any]) -> None:
    assert_valid_or_refused(json.dumps(fields).encode())


@given(st.binary())
def test_any_bytes_are_refused(body: bytes) -> None:
    assert_valid_or_refused(body)


@given(st.lists(st.one_of(st.text(max_size=2), st.integers(), st.booleans(), st.none(), st.lists(st.integers()))))
def test_read_inputs_gives_texts_or_ids(value: list[Any]) -> None:
    try:
        inputs = read_inputs(value, 5)
    except InvalidRequest:
        return
    kinds = {type(part) for one_input in inputs for part in one_input}
    assert kinds in ({str}, {int})
