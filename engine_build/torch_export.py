"""Exports encoders other than BERT through torch's tracing exporter. Called by export.

The tracing exporter (dynamo=False) is used because it writes one file, INT32 inputs and opset 17, all of which TensorRT
8.6 needs.
"""

import io
import warnings

import onnx
import torch

from engine_build.errors import ExportError
from engine_build.graph import IR_VERSION, OPSET, check_weights_size
from engine_build.precision import FloatType, Precision
from engine_build.torch_encoder import TorchEncoder
from gateway.contract import ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE

EXAMPLE_SHAPE = (2, 9)
"""Rows and length of the traced example; verify runs others, so a shape baked into the graph shows."""


TORCH_TYPES = {FloatType.FP32: torch.float32, FloatType.FP16: torch.float16, FloatType.BF16: torch.bfloat16}


class _OutputType(torch.nn.Module):
    """Gives an encoder's token embeddings in another type."""

    def __init__(self, encoder: torch.nn.Module, output: torch.dtype) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = output

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Token embeddings [B,S,H]."""
        hidden: torch.Tensor = self.encoder(input_ids, attention_mask)
        return hidden.to(self.output)


def export_torch_graph(
    encoder: TorchEncoder,
    vocab_size: int,
    precision: Precision = Precision.FP32,
    output: FloatType = FloatType.FP32,
) -> onnx.ModelProto:
    """Trace the encoder: INT32 input_ids and attention_mask [B,S] to last_hidden_state [B,S,H] of type `output`.

    Raises:
        ExportError: torch could not trace it, or not in that precision, or the file would be larger than protobuf
            allows.
    """
    if precision is Precision.MIXED:
        raise ExportError("--precision mixed is for BERT and RoBERTa alone; this model has fp32, fp16 and bf16")
    module = _OutputType(encoder.module.to(TORCH_TYPES[precision.matrix]), TORCH_TYPES[output])
    check_weights_size(sum(weight.numel() * weight.element_size() for weight in module.parameters()))
    model = onnx.load_model_from_string(_trace(module, vocab_size))
    model.ir_version = IR_VERSION
    return model


def _trace(encoder: torch.nn.Module, vocab_size: int) -> bytes:
    rows, length = EXAMPLE_SHAPE
    input_ids = (torch.arange(rows * length, dtype=torch.int32) % vocab_size).reshape(rows, length)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[-1, length // 2 :] = 0
    dynamic = {0: "batch", 1: "sequence"}
    file = io.BytesIO()
    with warnings.catch_warnings():
        # The tracing exporter announces its retirement and every traced constant; verify judges the result.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                encoder,
                args=(),
                kwargs={INPUT_IDS: input_ids, ATTENTION_MASK: attention_mask},
                f=file,  # type: ignore[arg-type]  # a stream is accepted, only not declared
                input_names=[INPUT_IDS, ATTENTION_MASK],
                output_names=[LAST_HIDDEN_STATE],
                dynamic_axes={INPUT_IDS: dynamic, ATTENTION_MASK: dynamic, LAST_HIDDEN_STATE: dynamic},
                opset_version=OPSET,
                dynamo=False,
            )
        except (RuntimeError, TypeError, ValueError, torch.onnx.errors.OnnxExporterError) as exc:
            raise ExportError(f"torch could not export the model: {_first_line(exc)}") from exc
    return file.getvalue()


def _first_line(exc: Exception) -> str:
    return next(iter(str(exc).splitlines()), type(exc).__name__)
