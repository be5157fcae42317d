"""A small notation for writing ONNX graphs: constants, operators, one finished model. Called by bert_graph.

Constants are given as float32 and stored in the type that the part of the graph computes in.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build.errors import ExportError
from engine_build.precision import FloatType
from gateway.contract import ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE

OPSET = 17
"""The first with LayerNormalization, and the last that TensorRT 8.6 parses."""
IR_VERSION = 8
"""The one that came with opset 17; older runtimes refuse newer ones."""
FLOAT_TYPES = {
    FloatType.FP32: TensorProto.FLOAT,
    FloatType.FP16: TensorProto.FLOAT16,
    FloatType.BF16: TensorProto.BFLOAT16,
}
"""ONNX's numbers of the types."""
MAX_WEIGHTS_BYTES = 2**31 - 2**20
"""An ONNX file is one protobuf message, which holds less than 2 GiB; one MiB is left for the nodes."""


class GraphWriter:
    """Collects nodes and constants; each method returns the name of a value, to be used as an input of the next."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Store an array under a name, once."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def ints(self, *values: int) -> str:
        """Store a list of INT64, as shapes and axes are written; equal lists are stored once."""
        return self.constant("ints/" + ",".join(map(str, values)), np.array(values, np.int64))

    def floats(self, name: str, value: NDArray[np.float32], kind: FloatType = FloatType.FP32) -> str:
        """Store a float32 array as `kind`, once.

        Raises:
            ExportError: a value is too large for it.
        """
        if name not in self._constants:
            self._constants[name] = stored_floats(name, value, kind)
        return name

    def scalar(self, value: float, kind: FloatType = FloatType.FP32) -> str:
        """Store a float without axes; equal ones are stored once."""
        suffix = "" if kind is FloatType.FP32 else f"/{kind}"
        return self.floats(f"scalars/{value!r}{suffix}", np.array(value, np.float32), kind)

    def cast(self, value: str, kind: FloatType, *, name: str) -> str:
        """Convert to a float type."""
        return self.node("Cast", value, name=name, to=FLOAT_TYPES[kind])

    def node(self, kind: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Add an operator with one output, which bears the node's name."""
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def finish(self, hidden_size: int, output: FloatType = FloatType.FP32) -> onnx.ModelProto:
        """The model whose output is the value named `last_hidden_state`; inputs as the contract has them.

        Raises:
            ExportError: the file would be larger than protobuf allows.
        """
        check_weights_size(sum(constant.ByteSize() for constant in self._constants.values()))
        batch = ["batch", "sequence"]
        graph = helper.make_graph(
            self._nodes,
            "encoder",
            [helper.make_tensor_value_info(name, TensorProto.INT32, batch) for name in (INPUT_IDS, ATTENTION_MASK)],
            [helper.make_tensor_value_info(LAST_HIDDEN_STATE, FLOAT_TYPES[output], [*batch, hidden_size])],
            list(self._constants.values()),
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="engine_build",
        )

    def append_to(self, model: onnx.ModelProto) -> None:
        """Add what was collected to a finished model, whose values it may use by name."""
        present = {constant.name for constant in model.graph.initializer}
        model.graph.initializer.extend(c for c in self._constants.values() if c.name not in present)
        model.graph.node.extend(self._nodes)


def stored_floats(name: str, value: NDArray[np.float32], kind: FloatType) -> onnx.TensorProto:
    """A tensor of float32 values rounded to `kind`.

    Raises:
        ExportError: a value is too large for it.
    """
    value = np.asarray(value, np.float32, order="C")
    if kind is FloatType.FP32:
        return numpy_helper.from_array(value, name)
    with np.errstate(over="ignore"):
        rounded = value.astype(np.float16) if kind is FloatType.FP16 else _bfloat16_bits(value)
    if kind is FloatType.FP16 and not np.isfinite(rounded).all():
        raise ExportError(f"{name} has values beyond FP16's 65504: use --precision bf16 or fp32")
    return helper.make_tensor(name, FLOAT_TYPES[kind], value.shape, rounded.tobytes(), raw=True)


def _bfloat16_bits(value: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32 values, rounded to the nearest, ties to even."""
    bits = value.reshape(-1).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def check_weights_size(size_bytes: int) -> None:
    """Refuse what one self-contained file cannot hold.

    Raises:
        ExportError: it is too much.
    """
    if size_bytes > MAX_WEIGHTS_BYTES:
        raise ExportError(f"the weights take {size_bytes / 2**30:.2f} GiB; one ONNX file holds less than 2 GiB")
