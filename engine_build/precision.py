"""The precisions that a graph can be written in. Used by bert_graph, torch_export, recipe and trtexec; pure.

Precision stands in the graph, so that TensorRT 11, whose networks are all strongly typed, and 8.6, which chooses
kernels by a flag, compute the same.
"""

from dataclasses import dataclass
from enum import StrEnum

from gateway.contract import Pooling


class FloatType(StrEnum):
    """Type of a tensor inside the graph, or of its output."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


class Precision(StrEnum):
    """What a graph computes in.

    LayerNormalization works in FP32 inside whatever its tensors are, and pooling is always FP32. `mixed` is FP16 in the
    matrix products alone: for models whose residual stream or attention scores leave FP16's range.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    MIXED = "mixed"

    @property
    def matrix(self) -> FloatType:
        """Type of weights and matrix products."""
        return FloatType.FP16 if self is Precision.MIXED else FloatType(self.value)

    @property
    def stream(self) -> FloatType:
        """Type of what passes from layer to layer, and of softmax."""
        return FloatType.FP32 if self is Precision.MIXED else FloatType(self.value)

    @property
    def least_cosine(self) -> float:
        """What every vector must reach against the FP32 reference before a plan is published."""
        return 0.99999 if self is Precision.FP32 else 0.999


@dataclass(frozen=True, slots=True)
class GraphForm:
    """How a graph is to be written.

    Attributes:
        precision: what it computes in.
        output: type of its output, FP32 or FP16.
        pooling: pooled inside the graph; None leaves token embeddings for the gateway to pool.
        row_gelu: GELU has a maximum over each row in it, which changes no value and is what TensorRT 8.6 needs to be
            fast at it; see bert_graph.
    """

    precision: Precision = Precision.FP32
    output: FloatType = FloatType.FP32
    pooling: Pooling | None = None
    row_gelu: bool = False


PLAIN = GraphForm()
"""All in FP32, token embeddings out."""
