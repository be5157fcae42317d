"""Names the layers that a mixed graph keeps in FP32, for a TensorRT without strong typing. Called by engine_steps."""

from pathlib import Path

import onnx

COMPUTING = frozenset({"Add", "LayerNormalization", "Softmax", "MatMul", "Div", "ReduceL2", "ReduceSum", "ReduceMax"})
"""Operators whose precision matters; casts and shuffles follow from theirs."""


def fp32_layers(path: Path) -> list[str]:
    """Names of the computing layers whose results are FP32, in the order of the graph."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    return [
        node.name
        for node in model.graph.node
        if node.op_type in COMPUTING and kinds.get(node.output[0]) == onnx.TensorProto.FLOAT
    ]
