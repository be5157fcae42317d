"""Replaces lone surrogates in JSON, which orjson refuses. Called by json_body; pure.

In arrays, and in windows of the body: a loop over a million escapes would take seconds, in which other bodies wait.
"""

import numpy as np
from numpy.typing import NDArray

_WINDOW_BYTES = 1024 * 1024
_REPLACEMENT = rb"\ufffd"
"""As long as a surrogate's escape, so that positions in the body stay true."""
_ESCAPE_BYTES = len(_REPLACEMENT)
_MARGIN_BYTES = 2 * _ESCAPE_BYTES
"""What is known of an escape depends on its neighbours, and on nothing farther away."""

_TWO_BACKSLASHES, _STAND_IN = rb"\\", b"\x00\x00"
"""The stand-in is no JSON, so that a body that has it already is refused anyway."""

_HIGH, _LOW = 1, 2


def replace_lone_surrogates(body: bytes | bytearray) -> bytearray:
    """Return the body with U+FFFD in place of each escaped surrogate that is not half of a pair."""
    # Then each backslash that is left begins an escape.
    changed = bytearray(body.replace(_TWO_BACKSLASHES, _STAND_IN))
    text = np.frombuffer(changed, np.uint8)
    for start in range(0, len(text), _WINDOW_BYTES):
        first = max(start - _MARGIN_BYTES, 0)
        lone = first + _find_lone_surrogates(text[first : start + _WINDOW_BYTES + _MARGIN_BYTES])
        lone = lone[(lone >= start) & (lone < start + _WINDOW_BYTES)]
        text[lone[:, None] + np.arange(_ESCAPE_BYTES)] = np.frombuffer(_REPLACEMENT, np.uint8)
    return changed.replace(_STAND_IN, _TWO_BACKSLASHES)


def _find_lone_surrogates(text: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the positions of the escapes of surrogates that are not half of a pair."""
    escapes = np.flatnonzero(text[: 1 - _ESCAPE_BYTES] == ord("\\"))
    u, first, second, third, fourth = (text[escapes + offset] for offset in range(1, _ESCAPE_BYTES))
    halves = _HALF[second] * ((u == ord("u")) & (_DIGIT[first] == 0xD) & (_DIGIT[third] >= 0) & (_DIGIT[fourth] >= 0))
    escapes, halves = escapes[halves > 0], halves[halves > 0]
    pairs = (halves[:-1] == _HIGH) & (halves[1:] == _LOW) & (np.diff(escapes) == _ESCAPE_BYTES)
    lone = np.ones(len(escapes), bool)
    lone[:-1] &= ~pairs
    lone[1:] &= ~pairs
    found: NDArray[np.intp] = escapes[lone]
    return found


def _table(values: dict[str, int], other: int) -> NDArray[np.int8]:
    """Return an array with a value for each byte."""
    table = np.full(256, other, np.int8)
    for characters, value in values.items():
        table[list(characters.encode())] = value
    return table


_DIGIT = _table({character: int(character, 16) for character in "0123456789abcdefABCDEF"}, -1)
_HALF = _table({"89abAB": _HIGH, "cdefCDEF": _LOW}, 0)
"""Which half of a pair an escape is whose first digit is d, by its second digit."""
