"""Runs an exported graph under ONNX Runtime. Called by verify, verify_plan and the self-check."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from engine_build.errors import VerificationError
from gateway.contract import ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE, SENTENCE_EMBEDDING

ERRORS_ONLY = 3
"""onnxruntime's severity that leaves warnings out."""


def session_options() -> onnxruntime.SessionOptions:
    """Quiet, and with idle threads that sleep: spinning, they would take the cores from the reference."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class OnnxEncoder:
    """A graph as the engine will see it: INT32 inputs by name, token embeddings or sentence embeddings out."""

    def __init__(self, path: Path) -> None:
        try:
            self._session = onnxruntime.InferenceSession(path, session_options(), providers=["CPUExecutionProvider"])
        except Exception as exc:  # onnxruntime's exceptions share no documented base
            raise VerificationError(f"ONNX Runtime cannot load {path}: {exc}") from exc
        inputs = {tensor.name: tensor.type for tensor in self._session.get_inputs()}
        if inputs != dict.fromkeys((INPUT_IDS, ATTENTION_MASK), "tensor(int32)"):
            raise VerificationError(f"{path.name} declares the inputs {inputs}, not INT32 ids and mask")
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]
        if self._outputs not in ([LAST_HIDDEN_STATE], [SENTENCE_EMBEDDING]):
            raise VerificationError(f"{path.name} declares the outputs {self._outputs}")

    def run(self, input_ids: NDArray[np.int32], attention_mask: NDArray[np.int32]) -> NDArray[Any]:
        """Run one padded batch, both int32 [B,S]; returns [B,S,H], or [B,H] where the graph pools.

        Raises:
            VerificationError: the graph fails on this shape.
        """
        try:
            (output,) = self._session.run(self._outputs, {INPUT_IDS: input_ids, ATTENTION_MASK: attention_mask})
        except Exception as exc:
            raise VerificationError(f"the graph fails on a batch of shape {list(input_ids.shape)}: {exc}") from exc
        return np.asarray(output)
