"""Reads what engine_build put beside an engine: the tokenizer and the self-check vectors. Called by serving."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from gateway import contract
from gateway.errors import StartupError
from gateway.types import Float32Array


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """One model's folder in the model repository.

    Attributes:
        name: the folder's name, which is Triton's name of the model.
        tokenizer: its tokenizer.json.
        created: when it was built, Unix time in seconds.
        precision: what its engine computes in: fp32, fp16, bf16 or mixed.
        check_texts: texts whose vectors are known.
        check_embeddings: float32 [texts,H] of unit length, as the builder's reference gave them.
    """

    name: str
    tokenizer: Path
    created: int
    precision: str
    check_texts: list[str]
    check_embeddings: Float32Array


def find_models(repository: Path) -> list[str]:
    """Return the names of all model directories in the repository that engine_build made, sorted.

    Raises:
        StartupError: the repository is missing or has none.
    """
    if not repository.is_dir():
        raise StartupError(f"no model repository at {repository}: set GATEWAY_MODEL_REPOSITORY")
    names = sorted(path.parent.name for path in repository.glob(f"[!.]*/{contract.MANIFEST_FILE}"))
    if not names:
        raise StartupError(f"no model in {repository}: build one with `python -m engine_build all`")
    return names


def read_model_directory(repository: Path, name: str) -> ModelDirectory:
    """Read a model directory's manifest.

    Raises:
        StartupError: the directory, its tokenizer or its manifest is missing or unreadable.
    """
    path = repository / name
    if not path.is_dir() or path.parent != repository:
        raise StartupError(f"no model directory {path}: build it with engine_build, or see GATEWAY_MODELS")
    for file in (contract.TOKENIZER_FILE, contract.MANIFEST_FILE):
        if not (path / file).is_file():
            raise StartupError(f"{path / file} is missing: build the model directory again with engine_build")
    try:
        manifest = json.loads((path / contract.MANIFEST_FILE).read_bytes())
        check = manifest["self_check"]
        return ModelDirectory(
            name=name,
            tokenizer=path / contract.TOKENIZER_FILE,
            created=int(datetime.fromisoformat(manifest["created"]).timestamp()),
            precision=manifest["recipe"]["graph"]["precision"],
            check_texts=list(check["texts"]),
            check_embeddings=np.array(check["embeddings"], np.float32),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"{path / contract.MANIFEST_FILE} is not a manifest of this version: {error!r}") from error
