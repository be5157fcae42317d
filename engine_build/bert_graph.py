"""Writes the ONNX graph of a BERT encoder straight from its weights, without torch. Called by export.

TensorRT runs this form more than half as fast again as a traced one (observed, BERT-base FP16, TensorRT 8.6): head
counts are written out, the scale of attention is folded into the query, the mask is made once, LayerNormalization is
one operator, and GELU has the form that the version is fast at. Letters in shapes: B rows, S padded length, H hidden
size, A heads, D = H / A.

Positions count from the left, so rows must be right-padded. A text that spells out the pad token itself gets
consecutive positions, where transformers' RoBERTa would skip them.
"""

import math

import numpy as np
import onnx
from numpy.typing import NDArray

from engine_build.architecture import BertArchitecture
from engine_build.errors import ModelFolderError
from engine_build.graph import FLOAT_TYPES, GraphWriter
from engine_build.precision import FloatType, Precision
from engine_build.weights import WORD_EMBEDDINGS, Weights
from gateway.contract import ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE

MASKED_SCORE = -10_000.0
"""Added to the attention score of padding: exp() of it is 0 in FP32 and FP16, and it fits into both."""


def write_bert_graph(
    architecture: BertArchitecture,
    weights: Weights,
    precision: Precision = Precision.FP32,
    output: FloatType = FloatType.FP32,
    *,
    row_gelu: bool = False,
) -> onnx.ModelProto:
    """The whole encoder: INT32 input_ids and attention_mask [B,S] to last_hidden_state [B,S,H] of type `output`.

    Args:
        architecture: the encoder's numbers.
        weights: its tensors.
        precision: what it computes in.
        output: type of the output.
        row_gelu: as in GraphForm; the other activations have no such form.

    Raises:
        ModelFolderError: a tensor is missing or has another shape than config.json says.
        ExportError: the file would be larger than protobuf allows, or a weight too large for the precision.
    """
    writer = _BertWriter(architecture, weights, precision, row_gelu)
    mask = writer.mask()
    hidden = writer.embeddings()
    for layer in range(architecture.layers):
        hidden = writer.attention(layer, hidden, mask)
        hidden = writer.feed_forward(layer, hidden)
    if precision.stream is output:
        writer.graph.node("Identity", hidden, name=LAST_HIDDEN_STATE)
    else:
        writer.graph.cast(hidden, output, name=LAST_HIDDEN_STATE)
    return writer.graph.finish(architecture.hidden_size, output)


class _BertWriter:
    """One method a part of the encoder; values are named after it, as in `layer.0/attention/query`."""

    def __init__(self, architecture: BertArchitecture, weights: Weights, precision: Precision, row_gelu: bool) -> None:
        self.graph = GraphWriter()
        self._architecture = architecture
        self._weights = weights
        self._matrix = precision.matrix
        self._stream = precision.stream
        self._row_gelu = row_gelu

    def mask(self) -> str:
        """What is added to attention scores: [B,1,1,S] of the stream's type, 0 for tokens and MASKED_SCORE for padding.

        The stack and minimum of two equal halves change no value. They keep TensorRT 8.6 from fusing the arithmetic
        into the first softmax, which then falls to a slow kernel.
        """
        graph, stream = self.graph, self._stream
        tokens = graph.node("Cast", ATTENTION_MASK, name="mask/tokens", to=FLOAT_TYPES[stream])
        padding = graph.node("Sub", graph.scalar(1.0, stream), tokens, name="mask/padding")
        scores = graph.node("Mul", padding, graph.scalar(MASKED_SCORE, stream), name="mask/scores")
        column = graph.node("Unsqueeze", scores, graph.ints(2), name="mask/column")
        stacked = graph.node("Concat", column, column, name="mask/stacked", axis=2)
        minimum = graph.node("ReduceMin", stacked, name="mask/minimum", axes=[2], keepdims=0)
        return graph.node("Unsqueeze", minimum, graph.ints(1, 2), name="mask/broadcast")

    def embeddings(self) -> str:
        """Sum of word and position embeddings, normalised: [B,S,H].

        Every token is of type 0, so that row is folded into the position table, which starts at the first position
        a token can have.
        """
        graph = self.graph
        table = self._weight(WORD_EMBEDDINGS, None, self._architecture.hidden_size)
        table_name = graph.floats("embeddings/words", table, self._stream)
        words = graph.node("Gather", table_name, INPUT_IDS, name="embeddings/word")
        shape = graph.node("Shape", INPUT_IDS, name="embeddings/shape")
        length = graph.node("Gather", shape, graph.ints(1), name="embeddings/length")
        positions = graph.floats("embeddings/positions", self._position_table(), self._stream)
        used = graph.node("Slice", positions, graph.ints(0), length, graph.ints(0), name="embeddings/position")
        total = graph.node("Add", words, used, name="embeddings/sum")
        return self._layer_norm(total, "embeddings.LayerNorm", "embeddings/norm")

    def attention(self, layer: int, hidden: str, mask: str) -> str:
        """Self-attention with its residual and norm: [B,S,H] to [B,S,H]."""
        graph, name, stored = self.graph, f"layer.{layer}/attention", f"encoder.layer.{layer}.attention"
        scale, narrow = self._architecture.head_size**-0.5, self._narrow(hidden, f"{name}/input")
        query = self._heads(f"{stored}.self.query", narrow, f"{name}/query", [0, 2, 1, 3], scale)
        key = self._heads(f"{stored}.self.key", narrow, f"{name}/key", [0, 2, 3, 1])
        value = self._heads(f"{stored}.self.value", narrow, f"{name}/value", [0, 2, 1, 3])
        scores = self._wide(graph.node("MatMul", query, key, name=f"{name}/scores"))
        masked = graph.node("Add", scores, mask, name=f"{name}/masked")
        probabilities = graph.node("Softmax", masked, name=f"{name}/probabilities", axis=-1)
        shares = self._narrow(probabilities, f"{name}/shares")
        context = graph.node("MatMul", shares, value, name=f"{name}/context")
        rows = graph.node("Transpose", context, name=f"{name}/rows", perm=[0, 2, 1, 3])
        merged = graph.node("Reshape", rows, graph.ints(0, 0, self._architecture.hidden_size), name=f"{name}/merged")
        output = self._wide(self._linear(f"{stored}.output.dense", merged, f"{name}/output"))
        total = graph.node("Add", output, hidden, name=f"{name}/sum")
        return self._layer_norm(total, f"{stored}.output.LayerNorm", f"{name}/norm")

    def feed_forward(self, layer: int, hidden: str) -> str:
        """Two linear maps around the activation, with residual and norm: [B,S,H] to [B,S,H]."""
        name, stored = f"layer.{layer}/feed_forward", f"encoder.layer.{layer}"
        narrow = self._narrow(hidden, f"{name}/input")
        active = self._activation(
            self._linear(f"{stored}.intermediate.dense", narrow, f"{name}/wide"), f"{name}/active"
        )
        output = self._wide(self._linear(f"{stored}.output.dense", active, f"{name}/output"))
        total = self.graph.node("Add", output, hidden, name=f"{name}/sum")
        return self._layer_norm(total, f"{stored}.output.LayerNorm", f"{name}/norm")

    def _heads(self, stored: str, hidden: str, name: str, axes: list[int], scale: float = 1.0) -> str:
        """Project and split into heads: [B,S,H] to [B,S,A,D], then transposed."""
        flat = self._linear(stored, hidden, name, scale)
        shape = self.graph.ints(0, 0, self._architecture.heads, self._architecture.head_size)
        split = self.graph.node("Reshape", flat, shape, name=f"{name}/split")
        return self.graph.node("Transpose", split, name=f"{name}/heads", perm=axes)

    def _linear(self, stored: str, value: str, name: str, scale: float = 1.0) -> str:
        kernel = self._weight(f"{stored}.weight", None, None)
        bias = self._weight(f"{stored}.bias", kernel.shape[0])
        weight_name = self.graph.floats(f"{name}/weight", kernel.T * np.float32(scale), self._matrix)
        bias_name = self.graph.floats(f"{name}/bias", bias * np.float32(scale), self._matrix)
        product = self.graph.node("MatMul", value, weight_name, name=f"{name}/product")
        return self.graph.node("Add", product, bias_name, name=name)

    def _narrow(self, value: str, name: str) -> str:
        """To the matrices' type, where the stream has another."""
        return value if self._matrix is self._stream else self.graph.cast(value, self._matrix, name=f"{name}/narrow")

    def _wide(self, value: str) -> str:
        """To the stream's type, where the matrices have another."""
        return value if self._matrix is self._stream else self.graph.cast(value, self._stream, name=f"{value}/wide")

    def _layer_norm(self, value: str, stored: str, name: str) -> str:
        size = self._architecture.hidden_size
        weight = self.graph.floats(f"{name}/weight", self._weight(f"{stored}.weight", size), self._stream)
        bias = self.graph.floats(f"{name}/bias", self._weight(f"{stored}.bias", size), self._stream)
        epsilon = self._architecture.layer_norm_epsilon
        return self.graph.node("LayerNormalization", value, weight, bias, name=name, axis=-1, epsilon=epsilon)

    def _activation(self, value: str, name: str) -> str:
        if self._architecture.activation == "relu":
            return self.graph.node("Relu", value, name=name)
        if self._row_gelu and self._architecture.activation == "gelu":
            return self._gelu_by_rows(value, name)
        inner = self._erf(value, name) if self._architecture.activation == "gelu" else self._tanh(value, name)
        gate = self.graph.node("Add", inner, self._scalar(1.0), name=f"{name}/gate")
        gated = self.graph.node("Mul", value, gate, name=f"{name}/gated")
        return self.graph.node("Mul", gated, self._scalar(0.5), name=name)

    def _gelu_by_rows(self, value: str, name: str) -> str:
        """GELU as x (erf(x / sqrt 2) / 2 + 1/2), where the half of erf is bounded by its own maximum in the row.

        TensorRT 8.6 gives GELU a kernel of its own, whose blocks take 256 values each and mostly wait for memory. With
        something to reduce, a block takes a whole row: less than half of the time (observed, BERT-base FP16).
        The last product keeps NaN and infinity, which a minimum alone would hide.
        """
        graph = self.graph
        scaled = graph.node("Mul", value, self._scalar(math.sqrt(0.5)), name=f"{name}/scaled")
        erf = graph.node("Erf", scaled, name=f"{name}/erf")
        half = graph.node("Mul", erf, self._scalar(0.5), name=f"{name}/half")
        largest = graph.node("ReduceMax", half, name=f"{name}/largest", axes=[-1], keepdims=1)
        bounded = graph.node("Min", half, largest, name=f"{name}/bounded")
        gate = graph.node("Add", bounded, self._scalar(0.5), name=f"{name}/gate")
        return graph.node("Mul", value, gate, name=name)

    def _erf(self, value: str, name: str) -> str:
        scaled = self.graph.node("Div", value, self._scalar(math.sqrt(2.0)), name=f"{name}/scaled")
        return self.graph.node("Erf", scaled, name=f"{name}/erf")

    def _tanh(self, value: str, name: str) -> str:
        graph = self.graph
        square = graph.node("Mul", value, value, name=f"{name}/square")
        cube = graph.node("Mul", square, value, name=f"{name}/cube")
        bend = graph.node("Mul", cube, self._scalar(0.044715), name=f"{name}/bend")
        total = graph.node("Add", value, bend, name=f"{name}/sum")
        scaled = graph.node("Mul", total, self._scalar(math.sqrt(2.0 / math.pi)), name=f"{name}/scaled")
        return graph.node("Tanh", scaled, name=f"{name}/tanh")

    def _scalar(self, value: float) -> str:
        return self.graph.scalar(value, self._matrix)

    def _position_table(self) -> NDArray[np.float32]:
        positions = self._weight("embeddings.position_embeddings.weight", None, self._architecture.hidden_size)
        token_types = self._weight("embeddings.token_type_embeddings.weight", None, self._architecture.hidden_size)
        table: NDArray[np.float32] = positions[self._architecture.first_position :] + token_types[0]
        return table

    def _weight(self, name: str, *shape: int | None) -> NDArray[np.float32]:
        """A stored tensor; `None` in the shape stands for any size."""
        if name not in self._weights:
            raise ModelFolderError(f"the weights lack the tensor {name}")
        weight = self._weights[name]
        if len(weight.shape) != len(shape) or any(
            want not in (None, have) for want, have in zip(shape, weight.shape, strict=True)
        ):
            raise ModelFolderError(f"tensor {name} has shape {list(weight.shape)}, which config.json does not allow")
        return weight
