"""Turns the bytes of a request body into a JSON object. Called by schemas, for large bodies in a worker thread; pure.

orjson holds the interpreter lock for a whole call. Its time grows with the body's length, which the body limit bounds,
and with the number of values, lists and strings, which is bounded here: ten megabytes of `[],` would stop the event
loop for seconds.
"""

import re
from typing import Any

import orjson

from gateway.errors import InvalidRequest, TokenLimitExceeded, TooManyInputs
from gateway.http.surrogates import replace_lone_surrogates

_BOM = b"\xef\xbb\xbf"
_UNCOUNTED_BYTES = 256 * 1024
"""Bodies up to this length are too short to hold the lock for long, whatever is in them."""
_COUNT_BYTES = 1024 * 1024
"""How much is counted in one call, so that the lock is let go in between."""
_OTHER_VALUES = 1000
"""Values and containers that a body may have beside those of `input`."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""What looks like the start of a surrogate's escape."""
_INPUT_KEY = re.compile(
    b'"' + b"".join(rb"(?:%c|\\u00(?i:%x))" % (letter, letter) for letter in b"input") + rb'"[ \t\r\n]*:'
)
"""The key, its letters plain or escaped: JSON has no other way to write them."""
_STRING_PART = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


def load_object(body: bytes | bytearray, *, max_inputs: int, max_tokens: int) -> dict[str, Any]:
    """Parse a JSON object; a lone surrogate becomes U+FFFD.

    Of a key that comes twice the last value counts, but for `input`, which is refused.

    Args:
        body: UTF-8, with or without a byte order mark.
        max_inputs: most inputs of one request.
        max_tokens: most tokens of one request; a body with more values than both together is not parsed at all.

    Raises:
        InvalidRequest: the body is not a JSON object, or has `input` twice.
        TooManyInputs, TokenLimitExceeded: the body has more lists and strings, or more values, than a request may.
    """
    if body.startswith(_BOM):
        body = body[len(_BOM) :]
    if not body or body.isspace():
        raise InvalidRequest("The body is empty; send a JSON object.")
    _check_size(body, max_inputs, max_tokens)
    value = _load(body)
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    _check_keys(body, value)
    return value


def _load(body: bytes | bytearray) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fault = error
    if _SURROGATE.search(body):
        try:
            return orjson.loads(replace_lone_surrogates(body))
        except orjson.JSONDecodeError as error:
            fault = error
    if "depth" in fault.msg:
        raise InvalidRequest("The body is nested too deeply.")
    raise InvalidRequest(f"The body is not valid JSON, at character {fault.pos}.")


def _check_keys(body: bytes | bytearray, value: dict[str, Any]) -> None:
    if body.count(b'"input"') < 2 and rb"\u00" not in body:
        return
    # After a backslash it is the end of a text; a quote that opens a key has none before it.
    keys = sum(body[match.start() - 1] != ord("\\") for match in _INPUT_KEY.finditer(body))
    if keys > _count_input_keys(value):
        raise InvalidRequest("The body has the key `input` twice.", param="input")


def _count_input_keys(value: dict[str, Any]) -> int:
    count = 0
    pending: list[object] = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            count += "input" in part
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return count


def _check_size(body: bytes | bytearray, max_inputs: int, max_tokens: int) -> None:
    if len(body) <= _UNCOUNTED_BYTES:
        return
    most_values = max_inputs + max_tokens + _OTHER_VALUES
    most_containers = max_inputs + _OTHER_VALUES
    values, containers = _count(body, 0, len(body))
    if values <= most_values and containers + body.count(b'"') // 2 <= most_containers:
        return
    values, containers = _count_outside_strings(body, most_values, most_containers)
    if containers > most_containers:
        raise TooManyInputs(f"One request may have {max_inputs} inputs. Send fewer at a time.", param="input")
    if values > most_values:
        raise TokenLimitExceeded(f"One request may have {max_tokens} tokens. Send fewer at a time.", param="input")


def _count(body: bytes | bytearray, first: int, last: int) -> tuple[int, int]:
    """Return the number of commas, and of opening brackets and braces, in that part."""
    values = containers = 0
    for start in range(first, last, _COUNT_BYTES):
        end = min(start + _COUNT_BYTES, last)
        values += body.count(b",", start, end)
        containers += body.count(b"[", start, end) + body.count(b"{", start, end)
    return values, containers


def _count_outside_strings(body: bytes | bytearray, most_values: int, most_containers: int) -> tuple[int, int]:
    """Count commas and containers outside strings; a string counts as a container. Stop soon after passing a limit."""
    values = containers = position = 0
    while position < len(body) and values <= most_values and containers <= most_containers:
        quote = body.find(b'"', position)
        end = len(body) if quote < 0 else quote
        more_values, more_containers = _count(body, position, end)
        values += more_values
        containers += more_containers + 1
        position = _skip_string(body, end + 1)
    return values, containers


def _skip_string(body: bytes | bytearray, position: int) -> int:
    """Return the position after the string whose first character is at `position`."""
    while position < len(body) and (match := _STRING_PART.match(body, position, position + _COUNT_BYTES)):
        position = match.end()
        if match.end() == match.start() or body[position : position + 1] == b'"':
            break
    return position + 1
