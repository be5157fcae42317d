"""Every form in which weights are stored gives the same float32 arrays."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine_build import build_extra
from engine_build.errors import MissingExtraError, ModelFolderError
from engine_build.weights import read_vocab_size, read_weights, weight_files
from tests.engine_build.tiny import NUMBERS, CopyFolder, tiny_model


def reload(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Rewrite model.safetensors."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def rename(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    tiny_model("bert").save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").is_file()


def to_torch_file(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(lambda folder: None, id="plain"),
        pytest.param(lambda folder: reload(folder, lambda w: {f"bert.{n}": t for n, t in w.items()}), id="prefix"),
        pytest.param(lambda folder: reload(folder, lambda w: {rename(n): t for n, t in w.items()}), id="old names"),
        pytest.param(
            lambda folder: reload(folder, lambda w: w | {"embeddings.position_ids": torch.arange(64)}), id="buffer"
        ),
        pytest.param(shard, id="sharded"),
        pytest.param(to_torch_file, id="torch file"),
    ],
)
def test_stored_forms(store: Callable[[Path], None], copy_folder: CopyFolder) -> None:
    folder = copy_folder()
    store(folder)

    weights = read_weights(weight_files(folder))

    expected = tiny_model("bert").state_dict()
    assert set(expected) <= set(weights)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights[name], tensor.numpy())
    assert read_vocab_size(weight_files(folder), {"vocab_size": 320}) == 320


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(dtype: torch.dtype, copy_folder: CopyFolder) -> None:
    folder = copy_folder()
    reload(folder, lambda weights: {name: tensor.to(dtype) for name, tensor in weights.items()})

    weights = read_weights(weight_files(folder))

    for name, tensor in tiny_model("bert").state_dict().items():
        assert weights[name].dtype == np.float32
        np.testing.assert_array_equal(weights[name], tensor.to(dtype).float().numpy())


def test_checkpoint_of_another_head(tmp_path: Path) -> None:
    torch.manual_seed(7)
    transformers.BertForMaskedLM(transformers.BertConfig(**NUMBERS)).save_pretrained(tmp_path)

    weights = read_weights(weight_files(tmp_path))

    assert "embeddings.word_embeddings.weight" in weights
    assert not any(name.startswith(("bert.", "cls.")) for name in weights)


def test_vocabulary_is_read_from_the_table_not_from_the_config(copy_folder: CopyFolder) -> None:
    assert read_vocab_size(weight_files(copy_folder()), {"vocab_size": 5}) == 320


def test_no_weights(copy_folder: CopyFolder) -> None:
    folder = copy_folder()
    (folder / "model.safetensors").unlink()

    with pytest.raises(ModelFolderError, match=r"missing file: .*model\.safetensors"):
        weight_files(folder)


def test_shard_missing(copy_folder: CopyFolder) -> None:
    folder = copy_folder()
    shard(folder)
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()

    with pytest.raises(ModelFolderError, match=f"missing file: .*{lost.name}"):
        weight_files(folder)


@pytest.mark.parametrize("content", [b"", b"not a tensor file at all"])
def test_broken_file_is_named(content: bytes, copy_folder: CopyFolder) -> None:
    folder = copy_folder()
    (folder / "model.safetensors").write_bytes(content)

    for read in (read_weights, lambda files: read_vocab_size(files, {})):
        with pytest.raises(ModelFolderError, match=r"cannot read .*model\.safetensors"):
            read(weight_files(folder))


def test_broken_torch_file_is_named(copy_folder: CopyFolder) -> None:
    folder = copy_folder()
    to_torch_file(folder)
    (folder / "pytorch_model.bin").write_bytes(b"nothing")

    with pytest.raises(ModelFolderError, match=r"cannot read .*pytorch_model\.bin"):
        read_weights(weight_files(folder))


def test_torch_file_without_torch(copy_folder: CopyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_folder()
    to_torch_file(folder)
    monkeypatch.setattr(build_extra, "available", lambda: False)

    with pytest.raises(MissingExtraError, match=r"reading pytorch_model\.bin needs torch"):
        read_weights(weight_files(folder))


def test_two_encoders_in_one_file(copy_folder: CopyFolder) -> None:
    folder = copy_folder()
    reload(folder, lambda w: {f"{side}.{n}": t.clone() for side in ("left", "right") for n, t in w.items()})

    with pytest.raises(ModelFolderError, match="holds 2 tensors named"):
        read_weights(weight_files(folder))
