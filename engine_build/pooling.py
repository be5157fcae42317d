"""Pools token embeddings for the self-check vectors; pure. The gateway has its own code, so each checks the other."""

import numpy as np
from numpy.typing import NDArray

from gateway.contract import Pooling


def sentence_embedding(token_embeddings: NDArray[np.float32], pooling: Pooling) -> NDArray[np.float32]:
    """Pool one unpadded sequence, float32 [n,H], and scale it to unit length; float32 [H]."""
    match pooling:
        case Pooling.MEAN:
            pooled = token_embeddings.mean(axis=0)
        case Pooling.CLS:
            pooled = token_embeddings[0]
        case Pooling.LAST_TOKEN:
            pooled = token_embeddings[-1]
        case Pooling.MAX:
            pooled = token_embeddings.max(axis=0)
    unit: NDArray[np.float32] = pooled / np.linalg.norm(pooled)
    return unit
