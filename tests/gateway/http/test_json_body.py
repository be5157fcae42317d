import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError, InvalidRequest, TokenLimitExceeded, TooManyInputs
from gateway.http.json_body import load_object

MAX_INPUTS, MAX_TOKENS = 10, 1000


def load(body: bytes) -> dict[str, object]:
    return load_object(body, max_inputs=MAX_INPUTS, max_tokens=MAX_TOKENS)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        pytest.param(r"\ud83d hi", "\ufffd hi", id="high"),
        pytest.param(r"\udc00", "\ufffd", id="low"),
        pytest.param(r"\uD83D\uD83D\uDE00", "\ufffd😀", id="high-before-pair"),
        pytest.param(r"\ud83d\ude00\ude00", "😀\ufffd", id="low-after-pair"),
        pytest.param(r"\ude00\ud83d", "\ufffd\ufffd", id="swapped"),
        pytest.param(r"\ud83d\ud83d", "\ufffd\ufffd", id="two-high"),
        pytest.param(r"\ud83d\\ude00", "\ufffd\\ude00", id="low-is-text"),
        pytest.param(r"\\ud83d\ude00", "\\ud83d\ufffd", id="high-is-text"),
        pytest.param(r"\\\ud83d", "\\\ufffd", id="after-a-backslash"),
        pytest.param(r"\\ud83d\udc00\\", "\\ud83d\ufffd\\", id="text-and-low"),
        pytest.param(r"\\ud83d \ud800", "\\ud83d \ufffd", id="text-then-high"),
        pytest.param(r"\ud83d\ude00", "😀", id="pair"),
        pytest.param(r"\u4e2d\udfff\u4e2d", "中\ufffd中", id="among-others"),
    ],
)
def test_lone_surrogates_are_replaced(escaped: str, text: str) -> None:
    assert load(b'{"a":"%b"}' % escaped.encode()) == {"a": text}


@pytest.mark.parametrize("window_bytes", range(1, 14))
def test_lone_surrogates_are_replaced_wherever_they_are(window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.surrogates._WINDOW_BYTES", window_bytes)
    body = rb'{"a":"\\ud83d\ude00\ud83d\ude00\n\ud83dx\\\udfff\uD83D\uD83D\uDE00\ude00"}'
    assert load(body) == {"a": "\\ud83d\ufffd😀\n\ufffdx\\\ufffd\ufffd😀\ufffd"}


def test_a_body_of_nothing_but_lone_surrogates() -> None:
    assert load(b'{"a":"%b"}' % (rb"\ud800" * 1_600_000)) == {"a": "\ufffd" * 1_600_000}


@given(st.text(st.characters(codec=None, categories=["Cs", "Lu", "So", "Po"]), max_size=12))
def test_surrogates_as_the_standard_library_pairs_them(text: str) -> None:
    body = json.dumps({"a": text}).encode()
    expected = json.loads(body)["a"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert load(body) == {"a": expected}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \r\n\t", id="blank"),
        pytest.param(b"\xef\xbb\xbf", id="byte-order-mark-alone"),
        pytest.param(b"{", id="open"),
        pytest.param(b'{"a":1,}', id="trailing-comma"),
        pytest.param(b'{"a":1} x', id="trailing-text"),
        pytest.param(b"{'a':1}", id="single-quotes"),
        pytest.param(b'{"a":NaN}', id="nan"),
        pytest.param(b'{"a":Infinity}', id="infinity"),
        pytest.param(b'{"a":-Infinity}', id="minus-infinity"),
        pytest.param(b'{"a":"\xff"}', id="not-utf-8"),
        pytest.param(b'{"a":"\xed\xa0\xbd"}', id="surrogate-bytes"),
        pytest.param('{"a":1}'.encode("utf-16"), id="utf-16"),
        pytest.param(rb'{"a":"\ud83d"', id="surrogate-and-open"),
        pytest.param(rb'{"a":"\ud8"}', id="short-escape"),
        pytest.param(b'{"a":"\n"}', id="raw-newline"),
        pytest.param(b"[" * 100_000, id="nesting"),
        pytest.param(b'{"a":' * 100_000, id="nested-objects"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="closed-nesting"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'"a"', id="string"),
        pytest.param(b"null", id="null"),
        pytest.param(b"1", id="number"),
    ],
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        load(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 2000, id="lists"),
        pytest.param(b'{"a":' * 9000, id="objects"),
        pytest.param(rb'{"a":"\ud800","b":' + b"[" * 2000 + b"]" * 2000 + b"}", id="beside-a-surrogate"),
    ],
)
def test_deep_nesting_is_named(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        load(body)


def test_other_faults_are_told_by_their_place() -> None:
    with pytest.raises(InvalidRequest, match="at character 13"):
        load(rb'{"a":"\ud800",	}')


def test_a_byte_order_mark_is_skipped() -> None:
    assert load(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"input":"a","input":"b"}', id="twice"),
        pytest.param(b'{"input" : "a", "model":"m", "input"\n:"b"}', id="spaces"),
        pytest.param(b'{"input":1,"meta":{"input":2},"input":3}', id="twice-and-nested"),
        pytest.param(b'{"input":"a","input":' + b"[" * 1000 + b"]" * 1000 + b"}", id="deep"),
        pytest.param(rb'{"input":"a","\u0069nput":"b"}', id="escaped"),
        pytest.param(rb'{"i\u006eput":"a","inp\u0075\u0074" : "b"}', id="both-escaped"),
        pytest.param(rb'{"i\u006Eput":"a","\u0069\u006e\u0070\u0075\u0074":"b"}', id="all-escaped"),
    ],
)
def test_input_twice_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as error:
        load(body)
    assert error.value.param == "input"


@pytest.mark.parametrize(
    "value",
    [
        {"input": "input", "user": "input"},
        {"input": ["input", "input"]},
        {"input": 'a text with "input": twice "input": in it'},
        {"input": 'ends with "input'},
        {"input": ['\\"input":', 'x"input":']},
        {"input": 1, "meta": {"input": [{"input": 2}]}},
        {"user": 'ends with "input', "input": ":"},
    ],
)
def test_input_as_text_or_deeper_is_not_twice(value: dict[str, object]) -> None:
    assert load(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(rb'{"\u0069nput":"a","model":"m"}', id="once"),
        pytest.param(rb'{"input":"a","user":"\\u0069nput\":"}', id="in-a-text"),
        pytest.param(rb'{"input":"a","\\u0069nput":"b"}', id="another-key"),
        pytest.param(rb'{"input":"a","\u0049nput":"b"}', id="another-letter"),
        pytest.param(rb'{"input":"a","meta":{"\u0069nput":1}}', id="deeper"),
    ],
)
def test_an_escaped_input_key_alone_is_taken(body: bytes) -> None:
    assert load(body) == json.loads(body)


def test_of_another_key_the_last_value_counts() -> None:
    assert load(b'{"model":"a","model":"b"}') == {"model": "b"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(b'{"input":[' + b"[]," * 200_000 + b"1]}", TooManyInputs, id="lists"),
        pytest.param(b'{"input":[' + b"{}," * 200_000 + b"1]}", TooManyInputs, id="objects"),
        pytest.param(b'{"input":[' + b'"a",' * 200_000 + b'"a"]}', TooManyInputs, id="texts"),
        pytest.param(b'{"input":[' + b"1," * 200_000 + b"1]}", TokenLimitExceeded, id="ids"),
        pytest.param(b'{"a":"' + b"x" * 3_000_000 + b'","b":[' + b"1," * 5000 + b"1]}", TokenLimitExceeded, id="late"),
        pytest.param(b'{"a":"' + b"\\" * 3_000_000, InvalidRequest, id="open-text-of-backslashes"),
        pytest.param(b'{"a":"' + b"," * 3_000_000, InvalidRequest, id="open-text-of-commas"),
    ],
)
def test_a_body_of_too_many_values_is_not_parsed(body: bytes, kind: type[GatewayError]) -> None:
    with pytest.raises(kind):
        load(body)


@pytest.mark.parametrize("text", ["[,{", '"', "\\", '\\"', "a\\", '",', "😀,"])
def test_large_texts_may_hold_anything(text: str) -> None:
    value = {"input": [text * 1_200_000, "end"], "model": "m"}
    assert load(json.dumps(value, ensure_ascii=False).encode()) == value
