"""Runs an exported graph under ONNX Runtime. Called by verify and the self-check."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from engine_build.errors import VerificationError
from gateway.contract import ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE

ERRORS_ONLY = 3
"""onnxruntime's severity that leaves warnings out."""


class OnnxEncoder:
    """A graph as the engine will see it: INT32 inputs by name, FP32 token embeddings out."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        # Idle threads that spin would take the cores from the reference.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as exc:  # onnxruntime's exceptions share no documented base
            raise VerificationError(f"ONNX Runtime cannot load {path}: {exc}") from exc
        inputs = {tensor.name: tensor.type for tensor in self._session.get_inputs()}
        if inputs != dict.fromkeys((INPUT_IDS, ATTENTION_MASK), "tensor(int32)"):
            raise VerificationError(f"{path.name} declares the inputs {inputs}, not INT32 ids and mask")

    def token_embeddings(self, input_ids: NDArray[np.int32], attention_mask: NDArray[np.int32]) -> NDArray[Any]:
        """Run one padded batch, both int32 [B,S]; returns [B,S,H].

        Raises:
            VerificationError: the graph fails on this shape.
        """
        try:
            (hidden,) = self._session.run([LAST_HIDDEN_STATE], {INPUT_IDS: input_ids, ATTENTION_MASK: attention_mask})
        except Exception as exc:
            raise VerificationError(f"the graph fails on a batch of shape {list(input_ids.shape)}: {exc}") from exc
        return np.asarray(hidden)
