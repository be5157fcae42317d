"""Puts pooling and L2 normalisation behind an encoder's graph, in FP32. Called by export for `--pooling engine`.

A product with the mask sums only real tokens and is faster than a masked sum (observed, TensorRT 8.6).
"""

import numpy as np
import onnx

from engine_build.graph import FLOAT_TYPES, GraphWriter
from engine_build.precision import FloatType
from gateway.contract import ATTENTION_MASK, LAST_HIDDEN_STATE, SENTENCE_EMBEDDING, Pooling

MASKED_VALUE = -1e4
"""Below every value of a real token; keeps padding out of the maximum."""
LEAST_NORM = 1e-12
"""Keeps a zero vector finite. Source: torch's `normalize`."""


def pooled(encoder: onnx.ModelProto, pooling: Pooling, hidden_size: int, output: FloatType) -> onnx.ModelProto:
    """Replace the FP32 last_hidden_state [B,S,H] of a graph by sentence_embedding [B,H] of unit length.

    Args:
        encoder: taken over and changed.
        pooling: how tokens become one vector.
        hidden_size: H.
        output: type of the new output.
    """
    head = _Head()
    vector = {
        Pooling.MEAN: head.mean,
        Pooling.CLS: head.first,
        Pooling.LAST_TOKEN: head.last,
        Pooling.MAX: head.maximum,
    }[pooling]()
    head.graph.cast(head.unit(vector), output, name=SENTENCE_EMBEDDING)
    head.graph.append_to(encoder)
    del encoder.graph.output[:]
    encoder.graph.output.append(
        onnx.helper.make_tensor_value_info(SENTENCE_EMBEDDING, FLOAT_TYPES[output], ["batch", hidden_size])
    )
    return encoder


class _Head:
    """One method a kind of pooling; each gives FP32 [B,H]."""

    def __init__(self) -> None:
        self.graph = GraphWriter()

    def mean(self) -> str:
        graph = self.graph
        mask = self._float_mask()
        row = graph.node("Unsqueeze", mask, graph.ints(1), name="pooling/row")
        total = graph.node("MatMul", row, LAST_HIDDEN_STATE, name="pooling/total")
        flat = graph.node("Squeeze", total, graph.ints(1), name="pooling/flat")
        count = graph.node("ReduceSum", mask, graph.ints(1), name="pooling/count", keepdims=1)
        return graph.node("Div", flat, count, name="pooling/mean")

    def first(self) -> str:
        index = self.graph.constant("pooling/first_index", np.array(0, np.int64))
        return self.graph.node("Gather", LAST_HIDDEN_STATE, index, name="pooling/first", axis=1)

    def last(self) -> str:
        graph = self.graph
        length = graph.node("ReduceSum", ATTENTION_MASK, graph.ints(1), name="pooling/length", keepdims=1)
        one = graph.constant("pooling/one", np.array(1, np.int32))
        index = graph.node("Sub", length, one, name="pooling/last_index")
        wide = graph.node("Cast", index, name="pooling/last_place", to=onnx.TensorProto.INT64)
        return graph.node("GatherND", LAST_HIDDEN_STATE, wide, name="pooling/last", batch_dims=1)

    def maximum(self) -> str:
        graph = self.graph
        padding = graph.node("Sub", graph.scalar(1.0), self._float_mask(), name="pooling/padding")
        low = graph.node("Mul", padding, graph.scalar(MASKED_VALUE), name="pooling/low")
        column = graph.node("Unsqueeze", low, graph.ints(2), name="pooling/column")
        masked = graph.node("Add", LAST_HIDDEN_STATE, column, name="pooling/masked")
        return graph.node("ReduceMax", masked, name="pooling/maximum", axes=[1], keepdims=0)

    def unit(self, vector: str) -> str:
        """Scale to unit length."""
        graph = self.graph
        norm = graph.node("ReduceL2", vector, name="pooling/norm", axes=[1], keepdims=1)
        divisor = graph.node("Max", norm, graph.scalar(LEAST_NORM), name="pooling/divisor")
        return graph.node("Div", vector, divisor, name="pooling/unit")

    def _float_mask(self) -> str:
        return self.graph.node("Cast", ATTENTION_MASK, name="pooling/mask", to=onnx.TensorProto.FLOAT)
