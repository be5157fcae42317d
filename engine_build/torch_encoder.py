"""Loads an encoder with transformers: eager attention, FP32, nothing downloaded. Called by torch_export and reference.

Imported only where build_extra said that torch is there.
"""

from dataclasses import dataclass
from inspect import signature

import numpy as np
import torch
from numpy.typing import NDArray

from engine_build import build_extra
from engine_build.errors import ModelFolderError
from engine_build.model_folder import ModelFolder
from gateway.contract import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS


class NamedInputs(torch.nn.Module):
    """Calls an encoder by keyword, so that no two inputs can change places, and supplies token types of zero."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.wants_token_types = TOKEN_TYPE_IDS in signature(encoder.forward).parameters

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Token embeddings, FP32 [B,S,H]."""
        inputs = {INPUT_IDS: input_ids, ATTENTION_MASK: attention_mask}
        if self.wants_token_types:
            inputs[TOKEN_TYPE_IDS] = torch.zeros_like(input_ids)
        hidden: torch.Tensor = self.encoder(**inputs).last_hidden_state
        return hidden


@dataclass(frozen=True, slots=True)
class TorchEncoder:
    """An encoder in evaluation mode."""

    module: NamedInputs

    def token_embeddings(self, input_ids: list[int]) -> NDArray[np.float32]:
        """Run one unpadded sequence; float32 [n,H]."""
        ids = torch.tensor([input_ids], dtype=torch.int64)
        with torch.inference_mode():
            hidden: NDArray[np.float32] = self.module(ids, torch.ones_like(ids))[0].numpy()
        return hidden


def load_torch_encoder(folder: ModelFolder) -> TorchEncoder:
    """Load the weights.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        ModelFolderError: transformers cannot load it, or the weights lack tensors, which it would fill at random.
    """
    build_extra.require(f"loading a {folder.model_type} model")
    from transformers import AutoModel  # noqa: PLC0415 - after HF_HUB_OFFLINE was set
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]

    try:
        encoder, loading = AutoModel.from_pretrained(
            folder.encoder_path,
            local_files_only=True,
            attn_implementation="eager",
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError) as exc:
        raise ModelFolderError(f"transformers cannot load {folder.encoder_path}: {exc}") from exc
    missing = sorted(name for name in loading["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise ModelFolderError(f"the weights lack the tensor {missing[0]} ({len(missing)} are missing)")
    return TorchEncoder(NamedInputs(encoder.eval()))
