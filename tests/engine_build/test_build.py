"""`build` from end to end on the tiny models: what is written, what is kept, what is built again."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from engine_build import build_extra, manifest, self_check, verify
from engine_build.build import Place, build
from engine_build.errors import VerificationError
from engine_build.recipe import Options
from gateway.contract import SELF_CHECK_TEXTS, Pooling
from tests.engine_build.tiny import CopyFolder, change_json

EMBEDDED_FILES = ["1/model.onnx", "1/model.py", "config.pbtxt", "manifest.json", "tokenizer.json"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place" / "triton_repo", tmp_path / "place" / "build")


def run(model: Path, place: Place, options: Options | None = None, *, force: bool = False) -> Path:
    return build(model, options or Options(), place, force=force)


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def written(directory: Path) -> int:
    """Changes whenever the directory is built again."""
    return (directory / "manifest.json").stat().st_mtime_ns


def test_embedded(model_folders: Mapping[str, Path], place: Place) -> None:
    directory = run(model_folders["bert"], place)

    assert directory == place.repository / "bert"
    assert files(directory) == EMBEDDED_FILES
    assert list(place.repository.parent.iterdir()) == [place.repository]
    content = json.loads((directory / "manifest.json").read_text())
    assert content["format"] == 1
    assert content["verified"]["reference"] == "torch"
    assert content["verified"]["max_difference"] < 5e-5
    assert content["recipe"]["length_buckets"] == [16, 32, 48, 64]
    assert set(content["files"]) == set(EMBEDDED_FILES) - {"manifest.json"}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(content["source"]["files"])
    assert content["self_check"]["texts"] == list(SELF_CHECK_TEXTS)
    embeddings = np.array(content["self_check"]["embeddings"])
    assert embeddings.shape == (3, 32)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)


def test_manifest_names_no_path_of_this_machine(model_folders: Mapping[str, Path], place: Place) -> None:
    directory = run(model_folders["bert"], place)

    for name in ("manifest.json", "config.pbtxt"):
        assert str(place.repository.parent.parent) not in (directory / name).read_text()
        assert str(model_folders["bert"].parent) not in (directory / name).read_text()


def test_second_run_is_up_to_date(
    model_folders: Mapping[str, Path], place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = written(run(model_folders["bert"], place))
    caplog.clear()

    assert written(run(model_folders["bert"], place)) == first
    assert caplog.messages[-1] == f"{place.repository / 'bert'} is up to date"
    assert written(run(model_folders["bert"], place, force=True)) != first


def test_touched_result_is_not_current(model_folders: Mapping[str, Path], place: Place) -> None:
    directory = run(model_folders["bert"], place)
    wanted = json.loads((directory / "manifest.json").read_text())["fingerprint"]
    assert manifest.is_current(directory, wanted)
    assert not manifest.is_current(directory, "another")

    for name in EMBEDDED_FILES:
        content = (directory / name).read_bytes()
        (directory / name).write_bytes(b"[]")
        assert not manifest.is_current(directory, wanted)
        (directory / name).unlink()
        assert not manifest.is_current(directory, wanted)
        (directory / name).write_bytes(content)
    assert manifest.is_current(directory, wanted)


def test_touched_result_is_built_again(model_folders: Mapping[str, Path], place: Place) -> None:
    directory = run(model_folders["bert"], place)
    (directory / "config.pbtxt").write_text("")

    run(model_folders["bert"], place)

    assert 'name: "bert"' in (directory / "config.pbtxt").read_text()


def test_changed_source_option_or_tool_is_built_again(
    copy_folder: CopyFolder, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy_folder()
    seen = [written(run(model, place))]
    change_json(model / "sentence_bert_config.json", {"max_seq_length": 40})
    seen.append(written(run(model, place)))
    seen.append(written(run(model, place, Options(max_batch_size=7))))
    monkeypatch.setattr(manifest, "version", lambda name: "0.0")
    seen.append(written(run(model, place, Options(max_batch_size=7))))

    assert len(set(seen)) == 4
    assert written(run(model, place, Options(max_batch_size=7))) == seen[-1]


def test_failed_verification_publishes_nothing(
    model_folders: Mapping[str, Path], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "TOLERANCE", 0.0)

    with pytest.raises(VerificationError):
        run(model_folders["bert"], place)

    assert list(place.repository.iterdir()) == []
    assert list(place.repository.parent.iterdir()) == [place.repository]


def test_failed_verification_keeps_the_old(
    model_folders: Mapping[str, Path], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(run(model_folders["bert"], place))
    monkeypatch.setattr(verify, "TOLERANCE", 0.0)

    with pytest.raises(VerificationError):
        run(model_folders["bert"], place, force=True)

    assert written(place.repository / "bert") == first


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_without_torch(
    kind: str, model_folders: Mapping[str, Path], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_extra, "available", lambda: False)

    directory = run(model_folders[kind], place)

    verified = json.loads((directory / "manifest.json").read_text())["verified"]
    assert (verified["reference"], verified["token_ids_compared"]) == ("numpy", False)


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "mpnet"])
def test_other_architectures(kind: str, model_folders: Mapping[str, Path], place: Place) -> None:
    assert files(run(model_folders[kind], place)) == EMBEDDED_FILES


def test_path_with_spaces(copy_folder: CopyFolder, tmp_path: Path) -> None:
    model = copy_folder().rename(tmp_path / "my model")

    directory = run(model, Place(tmp_path / "a place" / "repo", tmp_path / "b"), Options(name="mine"))

    assert files(directory) == EMBEDDED_FILES


@pytest.mark.parametrize("pooling", list(Pooling))
def test_self_check_pools_real_tokens(pooling: Pooling, model_folders: Mapping[str, Path], place: Place) -> None:
    directory = run(model_folders["bert"], place, Options(pooling=pooling))

    content = json.loads((directory / "manifest.json").read_text())
    assert content["recipe"]["pooling"] == pooling
    assert all(np.isfinite(content["self_check"]["embeddings"]).flat)
    assert round(content["self_check"]["embeddings"][0][0], self_check.DECIMALS) != 0
