"""Reads an encoder's weights into float32 arrays. Called by bert_graph and reference; no torch for safetensors.

Names come out bare (`embeddings.word_embeddings.weight`), whatever prefix the checkpoint was saved with.
"""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from engine_build import build_extra
from engine_build.errors import ModelFolderError
from engine_build.json_file import read_json_dict

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]

SAFETENSORS_FILE = "model.safetensors"
SAFETENSORS_INDEX_FILE = "model.safetensors.index.json"
TORCH_FILE = "pytorch_model.bin"
WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
OLD_LAYER_NORM_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""Checkpoints from before 2019 name the two tensors of a LayerNorm so."""


def weight_files(encoder_path: Path) -> tuple[Path, ...]:
    """The files that hold the weights; the index of a sharded checkpoint comes first.

    Raises:
        ModelFolderError: there are none, or a shard named by the index is missing.
    """
    index = encoder_path / SAFETENSORS_INDEX_FILE
    for name in (SAFETENSORS_FILE, TORCH_FILE):
        if (encoder_path / name).is_file() and not (name == TORCH_FILE and index.is_file()):
            return (encoder_path / name,)
    if not index.is_file():
        raise ModelFolderError(f"missing file: {encoder_path / SAFETENSORS_FILE} (or its index, or {TORCH_FILE})")
    names = sorted(set(read_json_dict(index).get("weight_map", {}).values()))
    shards = [encoder_path / Path(name).name for name in names]
    missing = [shard for shard in shards if not shard.is_file()]
    if missing or not shards:
        raise ModelFolderError(f"missing file: {missing[0]}" if missing else f"{index} names no files")
    return (index, *shards)


def read_vocab_size(files: tuple[Path, ...], config: Mapping[str, Any]) -> int:
    """Rows of the word embedding table, from the headers alone; config.json's word where they do not say.

    Raises:
        ModelFolderError: neither says.
    """
    for file in files:
        if file.suffix == ".safetensors" and (rows := _word_embedding_rows(file)) is not None:
            return rows
    if not isinstance(config.get("vocab_size"), int):
        raise ModelFolderError(f"{files[0].parent}: neither the weights nor config.json say the size of the vocabulary")
    return int(config["vocab_size"])


def read_weights(files: tuple[Path, ...]) -> Weights:
    """All tensors of the encoder in float32, names bare.

    Raises:
        ModelFolderError: a file is broken, or there is no word embedding table.
        MissingExtraError: only a torch file is there, and torch is not installed.
    """
    tensors: dict[str, NDArray[np.float32]] = {}
    for file in files:
        if file.suffix == ".safetensors":
            tensors |= _read_safetensors(file)
        elif file.suffix == ".bin":
            tensors |= _read_torch(file)
    prefix = _prefix(tensors, files[0])
    return {_modern(name.removeprefix(prefix)): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _word_embedding_rows(file: Path) -> int | None:
    try:
        with safe_open(file, framework="numpy") as tensors:
            names = [name for name in tensors.keys() if name.endswith(WORD_EMBEDDINGS)]  # noqa: SIM118 - no mapping
            return int(tensors.get_slice(names[0]).get_shape()[0]) if names else None
    except (OSError, SafetensorError) as exc:
        raise ModelFolderError(f"cannot read {file}: {exc}") from exc


def _prefix(names: Iterable[str], file: Path) -> str:
    tables = [name for name in names if name.endswith(WORD_EMBEDDINGS)]
    if len(tables) != 1:
        raise ModelFolderError(f"{file} holds {len(tables)} tensors named *{WORD_EMBEDDINGS}, not one")
    return tables[0].removesuffix(WORD_EMBEDDINGS)


def _modern(name: str) -> str:
    for old, new in OLD_LAYER_NORM_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _read_safetensors(file: Path) -> dict[str, NDArray[np.float32]]:
    """Read the library's raw form, since its numpy form knows no bfloat16."""
    try:
        stored = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except (OSError, SafetensorError) as exc:
        raise ModelFolderError(f"cannot read {file}: {exc}") from exc
    floats = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
    tensors = {}
    for name, tensor in stored:
        if tensor["dtype"] == "BF16":
            # A bfloat16 is the upper half of a float32.
            flat = (np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif tensor["dtype"] in floats:
            flat = np.frombuffer(tensor["data"], floats[tensor["dtype"]]).astype(np.float32, copy=False)
        else:
            continue  # integer buffers such as position_ids
        tensors[name] = flat.reshape(tensor["shape"])
    return tensors


def _read_torch(file: Path) -> dict[str, NDArray[np.float32]]:
    build_extra.require(f"reading {file.name}")
    import torch  # noqa: PLC0415 - a machine without torch builds from safetensors

    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as exc:
        raise ModelFolderError(f"cannot read {file}: {exc}") from exc
    return {name: tensor.float().numpy() for name, tensor in tensors.items() if tensor.is_floating_point()}
