"""Names the layers of a graph that leave FP16's range on given texts. Called by verify_plan when a plan fails."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from engine_build.onnx_encoder import session_options
from engine_build.vectors import Padding
from gateway.contract import ATTENTION_MASK, INPUT_IDS

LARGEST_FP16 = 65504.0
MASK = 1e30
"""Traced graphs mask with the least number of their type, which in a half graph is another: no overflow."""
SHOWN = 5


def overflowing_layers(reference: Path, texts: Sequence[Sequence[int]], padding: Padding) -> list[str]:
    """Run the FP32 graph on the texts and return `layer (largest value)` for each value beyond FP16, largest first.

    Args:
        reference: the graph in FP32.
        texts: token ids; one batch.
        padding: as the plan was run with.
    """
    model = onnx.shape_inference.infer_shapes(onnx.load(reference))
    floats = [
        value.name for value in model.graph.value_info if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    ]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in floats)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    ids, mask = padding.batch(texts)
    values = session.run(floats, {INPUT_IDS: ids, ATTENTION_MASK: mask})
    found = sorted(_largest(floats, values), reverse=True)
    return [f"{name} ({size:.0f})" for size, name in found if LARGEST_FP16 < size < MASK][:SHOWN]


def _largest(names: Sequence[str], values: Sequence[NDArray[np.float32]]) -> Iterator[tuple[float, str]]:
    for name, value in zip(names, values, strict=True):
        yield float(np.abs(value).max(initial=0)), name
