"""Opens what an exported graph is compared with: transformers under torch, or numpy_bert where torch is missing.

Called by verify. Either runs one unpadded sequence at a time: no batch, no padding and no mask, so that no fault in
those can hide in it.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine_build import build_extra
from engine_build.architecture import bert_architecture
from engine_build.errors import MissingExtraError
from engine_build.model_folder import ModelFolder
from engine_build.numpy_bert import NumpyBert
from engine_build.weights import read_weights

Encoder: TypeAlias = Callable[[list[int]], NDArray[np.float32]]
"""Token ids of one input, special tokens included, to its token embeddings: float32 [n,H]."""


class ReferenceKind(StrEnum):
    """Which reference verify takes; `auto` is torch where installed, else numpy."""

    AUTO = "auto"
    TORCH = "torch"
    NUMPY = "numpy"


def open_reference(folder: ModelFolder, kind: ReferenceKind) -> tuple[ReferenceKind, Encoder]:
    """Load a reference; returns which one it became.

    Raises:
        MissingExtraError: only torch could run this model, and it is not installed.
    """
    if kind is ReferenceKind.TORCH or (kind is ReferenceKind.AUTO and build_extra.available()):
        build_extra.require("the torch reference")
        from engine_build.torch_encoder import load_torch_encoder  # noqa: PLC0415 - torch is optional

        return ReferenceKind.TORCH, load_torch_encoder(folder).token_embeddings
    architecture = bert_architecture(folder.config)
    if architecture is None:
        raise MissingExtraError(
            f"the numpy reference does not know {folder.model_type}; torch and transformers do: "
            f"{build_extra.INSTALL_COMMAND}"
        )
    return ReferenceKind.NUMPY, NumpyBert(architecture, read_weights(folder.weight_files)).token_embeddings
