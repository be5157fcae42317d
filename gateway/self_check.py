"""Tells whether an engine is the one that its manifest describes, by texts whose vectors are known.

Called by replica for one endpoint; embedder, which checks a model through the whole pipeline, shares the comparison.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.batching import length_bucket, pad
from gateway.contract import SELF_CHECK_MIN_COSINE
from gateway.errors import GatewayError
from gateway.pooling import normalize, pool
from gateway.types import Encoding, Engine, Float32Array, OutputKind

_TIMEOUT_S = 30.0
"""For one text: a server's first call may have to load much."""


def describe_mismatch(vectors: Float32Array, expected: Float32Array) -> str | None:
    """Return how the vectors differ from those that they should be, or None; NaN and infinity differ.

    Args:
        vectors: float32 [N,H].
        expected: float32 [N,H] of unit length.
    """
    if vectors.shape != expected.shape:
        return f"its vectors are {vectors.shape}, its manifest's {expected.shape}"
    with np.errstate(invalid="ignore", over="ignore"):
        cosine = float(np.einsum("nd,nd->n", normalize(vectors), expected).min())
    if cosine >= SELF_CHECK_MIN_COSINE:
        return None
    return (
        f"its vectors differ from its manifest's (cosine {cosine:.4f}): engine, tokenizer or pooling are not"
        " those it was built with"
    )


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """A model's known texts.

    Attributes:
        encodings: the N texts, tokenized.
        embeddings: float32 [N,H] of unit length, as the builder's reference gave them.
    """

    encodings: Sequence[Encoding]
    embeddings: Float32Array

    def turned(self) -> "SelfCheck":
        """Return the same in the opposite order: an engine that answers what it was asked before fails one of both."""
        return SelfCheck(self.encodings[::-1], self.embeddings[::-1])

    async def find_mismatch(self, engine: Engine) -> str | None:
        """Put the texts to the engine, one call each; return what is wrong, or None."""
        try:
            vectors = [await _embed(engine, encoding) for encoding in self.encodings]
        except GatewayError as error:
            return f"its self-check failed: {error}"
        return describe_mismatch(np.concatenate(vectors), self.embeddings)


async def _embed(engine: Engine, encoding: Encoding) -> Float32Array:
    """Return float32 [1,H], not normalised."""
    spec = engine.spec
    ids = encoding.input_ids
    batch = pad([ids], spec.length_buckets[length_bucket(len(ids), spec.length_buckets)], spec.pad_id)
    output = await engine.infer(batch, _TIMEOUT_S)
    if spec.output_kind is OutputKind.SENTENCE_EMBEDDING:
        return output
    return pool(output, batch.attention_mask, spec.pooling)
