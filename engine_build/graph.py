"""A small notation for writing ONNX graphs: constants, operators, one finished model. Called by bert_graph."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build.errors import ExportError
from gateway.contract import ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE

OPSET = 17
"""The first with LayerNormalization, and the last that TensorRT 8.6 parses."""
IR_VERSION = 8
"""The one that came with opset 17; older runtimes refuse newer ones."""
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
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def ints(self, *values: int) -> str:
        """Store a list of INT64, as shapes and axes are written; equal lists are stored once."""
        return self.constant("ints/" + ",".join(map(str, values)), np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        """Store a float32 without axes; equal ones are stored once."""
        return self.constant(f"scalars/{value!r}", np.array(value, np.float32))

    def node(self, kind: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Add an operator with one output, which bears the node's name."""
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def finish(self, hidden_size: int) -> onnx.ModelProto:
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
            [helper.make_tensor_value_info(LAST_HIDDEN_STATE, TensorProto.FLOAT, [*batch, hidden_size])],
            list(self._constants.values()),
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="engine_build",
        )


def check_weights_size(size_bytes: int) -> None:
    """Refuse what one self-contained file cannot hold.

    Raises:
        ExportError: it is too much.
    """
    if size_bytes > MAX_WEIGHTS_BYTES:
        raise ExportError(f"the weights take {size_bytes / 2**30:.2f} GiB in FP32; one ONNX file holds less than 2 GiB")
