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
from engine_build.torch_encoder import TorchEncoder
from gateway.contract import ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE

EXAMPLE_SHAPE = (2, 9)
"""Rows and length of the traced example; verify runs others, so a shape baked into the graph shows."""


def export_torch_graph(encoder: TorchEncoder, vocab_size: int) -> onnx.ModelProto:
    """Trace the encoder: INT32 input_ids and attention_mask [B,S] to FP32 last_hidden_state [B,S,H].

    Raises:
        ExportError: torch could not trace it, or the file would be larger than protobuf allows.
    """
    check_weights_size(sum(weight.numel() * weight.element_size() for weight in encoder.module.parameters()))
    model = onnx.load_model_from_string(_trace(encoder, vocab_size))
    model.ir_version = IR_VERSION
    return model


def _trace(encoder: TorchEncoder, vocab_size: int) -> bytes:
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
                encoder.module,
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
