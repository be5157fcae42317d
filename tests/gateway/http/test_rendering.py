import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as st_numpy

from gateway.http.rendering import render_embeddings
from gateway.http.schemas import EmbeddingsResponse, EncodingFormat
from gateway.types import EmbeddingResult, Float32Array, Timings


def render(embeddings: Float32Array, encoding_format: EncodingFormat = "float") -> dict[str, Any]:
    slices = render_embeddings(EmbeddingResult(embeddings, 7, 0, Timings()), 'a/"b"', encoding_format)
    document: dict[str, Any] = json.loads(b"".join(slices))
    return document


def rows_of(document: dict[str, Any]) -> Float32Array:
    """Return the vectors as a client reads them."""
    rows = [
        np.frombuffer(base64.b64decode(row["embedding"], validate=True), "<f4")
        if isinstance(row["embedding"], str)
        else np.array(row["embedding"], np.float64).astype(np.float32)
        for row in document["data"]
    ]
    return np.stack(rows)


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
@given(
    embeddings=st_numpy.arrays(
        np.float32,
        st_numpy.array_shapes(min_dims=2, max_dims=2),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
def test_both_formats_hold_the_same_bits(encoding_format: EncodingFormat, embeddings: Float32Array) -> None:
    assert rows_of(render(embeddings, encoding_format)).tobytes() == embeddings.tobytes()


def test_document() -> None:
    document = render(np.ones((3, 2), np.float32))
    assert document == {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": [1.0, 1.0]} for index in range(3)],
        "model": 'a/"b"',
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    EmbeddingsResponse.model_validate(document, strict=True)


def test_768_dimensions_are_4096_characters() -> None:
    assert len(render(np.zeros((1, 768), np.float32), "base64")["data"][0]["embedding"]) == 4096


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_arrays_of_any_strides(encoding_format: EncodingFormat) -> None:
    whole = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
    for view in (whole[:, :3], whole[::-2], whole.T, whole[:, ::-1], np.asfortranarray(whole)):
        assert np.array_equal(rows_of(render(view, encoding_format)), view)


def test_read_only_array() -> None:
    embeddings = np.ones((1, 2), np.float32)
    embeddings.flags.writeable = False
    assert np.array_equal(rows_of(render(embeddings)), embeddings)


def test_large_answers_come_in_slices() -> None:
    embeddings = np.random.default_rng(0).standard_normal((300, 768)).astype(np.float32)
    slices = render_embeddings(EmbeddingResult(embeddings, 7, 0, Timings()), "m", "float")
    assert len(slices) > 5
    assert max(map(len, slices)) < 300_000
    document = json.loads(b"".join(slices))
    assert [row["index"] for row in document["data"]] == list(range(300))
    assert np.array_equal(rows_of(document), embeddings)


def test_the_last_slice_may_hold_no_row() -> None:
    embeddings = np.random.default_rng(0).standard_normal((1, 40_000)).astype(np.float32)
    assert np.array_equal(rows_of(render(embeddings)), embeddings)
