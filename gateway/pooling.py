"""Turns token embeddings into sentence embeddings, and those into unit vectors. Called by scheduler and embedder; pure.

What stands at padded positions never counts, NaN included.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.contract import Pooling
from gateway.types import Float32Array, Int32Array

_LEAST_NORM = 1e-12
"""Shorter vectors are divided by this instead of their length. Source: torch.nn.functional.normalize."""


def pool(hidden: NDArray[np.floating[Any]], attention_mask: Int32Array, pooling: Pooling) -> Float32Array:
    """Reduce each row's token embeddings to one vector, over real tokens only.

    Args:
        hidden: float32 or float16 [B,S,H].
        attention_mask: int32 [B,S] of 0/1, right-padded, each row with at least one 1.
        pooling: mean, first token, last real token, or maximum.

    Returns:
        float32 [B,H], a new array; mean is accumulated in float32.

    Source: sentence-transformers `Pooling`.
    """
    vectors: NDArray[Any]
    match pooling:
        case Pooling.CLS:
            vectors = hidden[:, 0]
        case Pooling.LAST_TOKEN:
            vectors = hidden[np.arange(len(hidden)), attention_mask.sum(axis=1) - 1]
        case Pooling.MAX:
            vectors = np.where(attention_mask[:, :, None] == 1, hidden, -np.inf).max(axis=1)
        case Pooling.MEAN:
            return _mean(hidden.astype(np.float32, copy=False), attention_mask)
    return vectors.astype(np.float32)


def _mean(hidden: Float32Array, attention_mask: Int32Array) -> Float32Array:
    weights = attention_mask.astype(np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    # One matrix product is the fastest form, but 0 x NaN is NaN: where that happened, padding is blanked first.
    with np.errstate(invalid="ignore", over="ignore"):
        means: Float32Array = np.matmul(weights[:, None, :], hidden)[:, 0]
        for row in np.flatnonzero(~np.isfinite(means).all(axis=1)):
            means[row] = weights[row] @ np.where(attention_mask[row, :, None] == 1, hidden[row], np.float32(0))
    return means


def normalize(vectors: Float32Array) -> Float32Array:
    """Return the vectors scaled to unit length, float32 [N,D], a new array. A zero vector stays zero."""
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    scaled: Float32Array = (vectors / np.maximum(norms, _LEAST_NORM)[:, None]).astype(np.float32)
    return scaled
