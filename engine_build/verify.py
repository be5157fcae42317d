"""Compares an exported graph with the reference, and token ids with transformers' own. Called by assembly and cli.

The graph runs padded batches of mixed lengths, as the gateway sends them; the reference runs each row alone. So a
swapped input, a mask that leaks, a baked-in shape or a wrong position shows as a difference.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine_build.errors import VerificationError
from engine_build.model_folder import ModelFolder
from engine_build.onnx_encoder import OnnxEncoder
from engine_build.pooling import sentence_embedding
from engine_build.reference import Encoder, ReferenceKind, open_reference
from engine_build.tokenizer import check_token_ids
from gateway.contract import Pooling

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest absolute difference of an FP32 graph in any value of any real token."""

SHAPES = ((5, 48), (2, 16), (1, 512))
"""Batches compared, [B,S]. Lengths are cut to the model's limit, so the last batch reaches the last position."""

SEED = 20_240_601


@dataclass(frozen=True, slots=True)
class Verification:
    """What was compared, for the manifest.

    Attributes:
        reference: torch, which brings transformers' tokenizer too, or numpy, which has none to compare with.
        shapes: [B,S] of each batch.
        max_difference: largest absolute difference found.
    """

    reference: ReferenceKind
    shapes: tuple[tuple[int, int], ...]
    max_difference: float

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the manifest stores them."""
        return {
            "reference": self.reference.value,
            "shapes": [list(shape) for shape in self.shapes],
            "max_difference": self.max_difference,
            "tolerance": TOLERANCE,
            "token_ids_compared": self.reference is ReferenceKind.TORCH,
        }


def verify(
    folder: ModelFolder,
    onnx_path: Path,
    tokenizer: Tokenizer,
    kind: ReferenceKind = ReferenceKind.AUTO,
    pooling: Pooling | None = None,
) -> Verification:
    """Compare everything; `pooling` is what a graph that pools does, the folder's where it is not given.

    Raises:
        VerificationError: something differs by more than the tolerance, or is not finite; the message says where.
        MissingExtraError: the reference asked for is not installed.
    """
    reference_kind, reference = open_reference(folder, kind)
    encoder, kind_of_pooling = OnnxEncoder(onnx_path), pooling or folder.pipeline.pooling
    shapes = tuple(dict.fromkeys((rows, min(length, folder.limit.tokens)) for rows, length in SHAPES))
    generator = np.random.default_rng(SEED)
    differences = [
        compare(encoder, reference, kind_of_pooling, *padded_batch(shape, folder.vocab_size, folder.pad_id, generator))
        for shape in shapes
    ]
    if reference_kind is ReferenceKind.TORCH:
        check_token_ids(folder, tokenizer)
    logger.info("verified against %s: largest difference %.1e", reference_kind.value, max(differences))
    return Verification(reference_kind, shapes, max(differences))


def padded_batch(
    shape: tuple[int, int], vocab_size: int, pad_id: int, generator: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Random ids in rows from the full length down to one token; ids and mask, int32 [B,S]."""
    rows, length = shape
    lengths = np.linspace(length, 1, rows).astype(np.int32)
    attention_mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    input_ids = generator.integers(0, vocab_size - 1, shape, dtype=np.int32)
    input_ids += input_ids >= pad_id  # any id but the pad id
    return np.where(attention_mask == 1, input_ids, np.int32(pad_id)), attention_mask


def compare(
    encoder: OnnxEncoder,
    reference: Encoder,
    pooling: Pooling,
    input_ids: NDArray[np.int32],
    attention_mask: NDArray[np.int32],
) -> float:
    """Largest absolute difference over every row: of its real tokens, or of its vector where the graph pools.

    Raises:
        VerificationError: it is over the tolerance, or a value is not finite, padding included.
    """
    where = f"batch {list(input_ids.shape)}"
    output = encoder.run(input_ids, attention_mask)
    if not np.isfinite(output).all():
        raise VerificationError(f"{where}: the graph gives values that are not finite")
    largest = 0.0
    for row, n in enumerate(attention_mask.sum(axis=1)):
        want = reference(input_ids[row, :n].tolist())
        have = output[row, :n] if output.ndim == 3 else output[row]
        if output.ndim == 2:
            want = sentence_embedding(want, pooling)
        if have.shape != want.shape:
            raise VerificationError(f"{where}: the graph gives shape {have.shape}, the reference {want.shape}")
        difference = float(np.abs(have - want).max())
        if not difference < TOLERANCE:
            raise VerificationError(
                f"{where}, row {row} of {n} tokens: the graph differs from the reference by {difference:.2e}, "
                f"more than {TOLERANCE:.0e}"
            )
        largest = max(largest, difference)
    return largest
