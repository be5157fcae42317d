"""Compares whatever runs batches with the FP32 reference, on a thousand texts and in every row. Called by engine_steps.

Batches of one, of seven and of the largest size hold texts of all lengths together, so that a fault that only the first
row escapes, or only short rows, shows.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine_build.errors import VerificationError
from engine_build.onnx_encoder import OnnxEncoder
from engine_build.overflow import overflowing_layers
from engine_build.precision import Precision
from engine_build.recipe import Recipe
from engine_build.report import Report
from engine_build.vectors import BatchRun, Padding, compare_rows, reference_vectors

logger = logging.getLogger(__name__)

ODD_BATCH = 7


@dataclass(frozen=True, slots=True)
class Sample:
    """Texts and what the reference makes of them.

    Attributes:
        texts: token ids.
        vectors: float32 [texts,H], of unit length.
        reference: the FP32 graph that made them, itself compared with the model's own code.
    """

    texts: list[list[int]]
    vectors: NDArray[np.float32]
    reference: Path


def make_sample(reference: Path, texts: list[list[int]], recipe: Recipe) -> Sample:
    """Run the FP32 graph on every text alone."""
    logger.info("running the FP32 reference on %d texts", len(texts))
    return Sample(texts, reference_vectors(OnnxEncoder(reference).run, texts, recipe.pooling), reference)


def check_range(sample: Sample, recipe: Recipe) -> None:
    """Refuse FP16 for a model whose values leave its range on the sample.

    Raises:
        VerificationError: they do; the message names the layers.
    """
    layers = overflowing_layers(sample.reference, sample.texts, Padding(recipe.length_buckets, recipe.pad_id))
    if layers:
        raise VerificationError(_beyond(layers, recipe.graph.precision))


def verify_vectors(run: BatchRun, what: str, sample: Sample, recipe: Recipe, tokenizer: Tokenizer) -> Report:
    """Compare, log the table, and let only what reaches the bar pass.

    Args:
        run: takes batches up to the recipe's largest.
        what: names it in the report.
        sample: texts and their reference vectors.
        recipe: pooling, padding, precision.
        tokenizer: shows the worst texts.

    Raises:
        VerificationError: a row is below the bar or not finite; the message says what to change.
    """
    padding = Padding(recipe.length_buckets, recipe.pad_id)
    sizes = sorted({1, min(ODD_BATCH, recipe.max_batch_size), recipe.max_batch_size})
    rows = [
        row for size in sizes for row in compare_rows(run, sample.texts, sample.vectors, size, padding, recipe.pooling)
    ]
    precision = recipe.graph.precision
    report = Report(what, tuple(rows), precision.least_cosine)
    table = report.table(sample.texts, lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)))
    (logger.info if report.good else logger.error)("%s", table)
    if not report.good:
        worst = [sample.texts[row.text] for row in report.worst]
        raise VerificationError(
            f"{what} is not good enough: least cosine {report.least_cosine:.5f}, {report.not_finite} rows not finite, "
            f"{report.least_allowed} is needed; {_advice(precision, sample.reference, worst, padding)}"
        )
    return report


def _advice(precision: Precision, reference: Path, worst: Sequence[Sequence[int]], padding: Padding) -> str:
    if precision is Precision.FP32:
        return "FP32 leaves nothing to change: report it, with the log"
    layers = overflowing_layers(reference, worst, padding)
    if layers and precision is not Precision.BF16:
        return _beyond(layers, precision)
    wider = {Precision.FP16: "mixed", Precision.MIXED: "fp32", Precision.BF16: "mixed or fp32"}[precision]
    return f"no layer leaves FP16's range, so the rounding is too coarse: use --precision {wider}"


def _beyond(layers: Sequence[str], precision: Precision) -> str:
    other = "bf16 or fp32" if precision is Precision.MIXED else "mixed, bf16 or fp32"
    return f"beyond FP16's 65504 are {', '.join(layers)}: use --precision {other}"
