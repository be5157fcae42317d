"""Sentence embeddings of whatever runs batches - a graph, a plan, a Triton - and their distance from the reference's.

Called by verify_plan and self_check. B rows, S padded length, H hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine_build.errors import VerificationError
from engine_build.pooling import sentence_embedding
from gateway.contract import Pooling

BatchRun: TypeAlias = Callable[[NDArray[np.int32], NDArray[np.int32]], NDArray[Any]]
"""ids and mask, int32 [B,S] right-padded, to token embeddings [B,S,H] or sentence embeddings [B,H]."""


@dataclass(frozen=True, slots=True)
class Padding:
    """How batches are padded: to the next of the ascending lengths, with `pad_id`."""

    lengths: tuple[int, ...]
    pad_id: int

    def batch(self, texts: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Ids and mask, int32 [B,S]."""
        longest = max(map(len, texts))
        length = next((size for size in self.lengths if size >= longest), longest)
        ids = np.full((len(texts), length), self.pad_id, np.int32)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        return ids, mask


@dataclass(frozen=True, slots=True)
class Row:
    """One text in one batch.

    Attributes:
        text: its place among the texts.
        tokens: its length.
        batch: rows of the batch that it was in.
        place: its row there.
        cosine: with the reference; NaN where a value is not finite.
    """

    text: int
    tokens: int
    batch: int
    place: int
    cosine: float


def sentence_vectors(output: NDArray[Any], mask: NDArray[np.int32], pooling: Pooling) -> NDArray[np.float32]:
    """Pool what a batch gave, unless it is pooled already; float32 [B,H] of unit length."""
    wide = output.astype(np.float32, copy=False)
    if wide.ndim == 2:
        unit: NDArray[np.float32] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
        return unit
    return np.stack([sentence_embedding(row[:tokens], pooling) for row, tokens in zip(wide, mask.sum(1), strict=True)])


def reference_vectors(run: BatchRun, texts: Sequence[Sequence[int]], pooling: Pooling) -> NDArray[np.float32]:
    """Run every text alone and unpadded; float32 [texts,H]."""
    vectors = []
    for text in texts:
        ids = np.array([text], np.int32)
        mask = np.ones_like(ids)
        vectors.append(sentence_vectors(run(ids, mask), mask, pooling)[0])
    return np.stack(vectors)


def compare_rows(
    run: BatchRun,
    texts: Sequence[Sequence[int]],
    expected: NDArray[np.float32],
    rows: int,
    padding: Padding,
    pooling: Pooling,
) -> list[Row]:
    """Run the texts in batches of `rows` and compare every row.

    Raises:
        VerificationError: the output's shape is wrong.
    """
    compared: list[Row] = []
    for start in range(0, len(texts), rows):
        part = texts[start : start + rows]
        ids, mask = padding.batch(part)
        cosines = _cosines(run(ids, mask), mask, expected[start : start + rows], pooling)
        compared += [
            Row(start + place, len(text), len(part), place, float(cosines[place])) for place, text in enumerate(part)
        ]
    return compared


def _cosines(
    output: NDArray[Any], mask: NDArray[np.int32], expected: NDArray[np.float32], pooling: Pooling
) -> NDArray[np.float64]:
    """Cosine of each row; NaN where any of its values is not finite, padding included."""
    size = expected.shape[1]
    if output.shape not in ((len(mask), size), (*mask.shape, size)):
        raise VerificationError(
            f"a batch {list(mask.shape)} gives {list(output.shape)}; {size} values a vector are due"
        )
    finite = np.isfinite(output.reshape(len(mask), -1)).all(axis=1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        vectors = sentence_vectors(output, mask, pooling).astype(np.float64)
        wanted = expected.astype(np.float64)
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(wanted, axis=1)
        return np.where(finite, np.einsum("nd,nd->n", vectors, wanted) / norms, np.nan)
