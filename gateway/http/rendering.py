"""Writes the answer to an embeddings request straight from the array. Called by routes, large ones in a thread; pure.

Rows are written one at a time, so that the interpreter lock is never held for long, and joined to slices that a
connection takes one after the other.
"""

import binascii
from collections.abc import Callable, Iterator

import numpy as np
import orjson

from gateway.http.schemas import EncodingFormat
from gateway.types import EmbeddingResult, Float32Array

_SLICE_BYTES = 256 * 1024


def render_embeddings(result: EmbeddingResult, model: str, encoding_format: EncodingFormat) -> list[bytes]:
    """Return the JSON document as slices, to be sent in order.

    `float` writes the shortest decimals that read back as the same float32, so that both formats hold the same bits.

    Args:
        result: embeddings float32 [N,D], finite, of any strides.
        model: the model's public name.
        encoding_format: how vectors are written.
    """
    usage = {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens}
    foot = b'],"model":%b,"usage":%b}' % (orjson.dumps(model), orjson.dumps(usage))
    slices = list(_join(_rows(result.embeddings, _WRITERS[encoding_format])))
    slices[0] = b'{"object":"list","data":[' + slices[0]
    slices[-1] += foot
    return slices


def _rows(embeddings: Float32Array, write: Callable[[Float32Array], bytes]) -> Iterator[bytes]:
    separator = b""
    for index, row in enumerate(np.ascontiguousarray(embeddings)):
        yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (separator, index, write(row))
        separator = b","


def _join(rows: Iterator[bytes]) -> Iterator[bytes]:
    pending: list[bytes] = []
    length = 0
    for row in rows:
        pending.append(row)
        length += len(row)
        if length >= _SLICE_BYTES:
            yield b"".join(pending)
            pending, length = [], 0
    yield b"".join(pending)


def _write_floats(row: Float32Array) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)


def _write_base64(row: Float32Array) -> bytes:
    return b'"%b"' % binascii.b2a_base64(row.astype("<f4", copy=False).tobytes(), newline=False)


_WRITERS: dict[EncodingFormat, Callable[[Float32Array], bytes]] = {"float": _write_floats, "base64": _write_base64}
