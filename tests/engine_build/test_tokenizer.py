"""tokenizer.json as the gateway wants it: no truncation, no padding, the model's own ids."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine_build import build_extra
from engine_build.errors import MissingExtraError, ModelFolderError
from engine_build.model_folder import read_model_folder
from engine_build.tokenizer import check_token_ids, open_tokenizer, write_tokenizer
from tests.engine_build.tiny import CORPUS, CopyFolder


def test_truncation_and_padding_are_taken_out(copy_folder: CopyFolder, tmp_path: Path) -> None:
    path = copy_folder()
    stored = Tokenizer.from_file(str(path / "tokenizer.json"))
    stored.enable_truncation(8)
    stored.enable_padding(length=8)
    stored.save(str(path / "tokenizer.json"))

    tokenizer = write_tokenizer(read_model_folder(path), tmp_path / "out.json")

    assert (tokenizer.truncation, tokenizer.padding) == (None, None)
    assert len(tokenizer.encode("fox").ids) < 8 < len(tokenizer.encode("the quick brown fox " * 9).ids)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_ids_equal_transformers(kind: str, model_folders: Mapping[str, Path], tmp_path: Path) -> None:
    folder = read_model_folder(model_folders[kind])

    check_token_ids(folder, write_tokenizer(folder, tmp_path / "out.json"))


def test_lower_casing_of_sentence_transformers(copy_folder: CopyFolder, tmp_path: Path) -> None:
    folder = read_model_folder(copy_folder("roberta", files={"sentence_bert_config.json": {"do_lower_case": True}}))

    tokenizer = write_tokenizer(folder, tmp_path / "out.json")

    assert tokenizer.encode("QUICK Fox").ids == tokenizer.encode("quick fox").ids
    check_token_ids(folder, tokenizer)


def test_more_ids_than_rows(copy_folder: CopyFolder, tmp_path: Path) -> None:
    path = copy_folder()
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"]["zebra"] = 320
    (path / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(ModelFolderError, match=r"has id 320, .* only 320 rows"):
        write_tokenizer(read_model_folder(path), tmp_path / "out.json")


def slow_folder(copy_folder: CopyFolder) -> Path:
    """A folder as of 2019: vocab.txt and nothing else for the tokenizer."""
    path = copy_folder(files={"sentence_bert_config.json": {"max_seq_length": 64}})
    vocabulary = open_tokenizer(path / "tokenizer.json").get_vocab()
    (path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=lambda token: vocabulary[token])))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()
    return path


def test_slow_tokenizer_is_converted(
    copy_folder: CopyFolder, model_folders: Mapping[str, Path], tmp_path: Path
) -> None:
    tokenizer = write_tokenizer(read_model_folder(slow_folder(copy_folder)), tmp_path / "out.json")

    expected = open_tokenizer(model_folders["bert"] / "tokenizer.json")
    for text in CORPUS:
        assert tokenizer.encode(text).ids == expected.encode(text).ids


def test_slow_tokenizer_without_transformers(
    copy_folder: CopyFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = read_model_folder(slow_folder(copy_folder))
    monkeypatch.setattr(build_extra, "available", lambda: False)

    with pytest.raises(MissingExtraError, match="converting the tokenizer needs torch and transformers"):
        write_tokenizer(folder, tmp_path / "out.json")


def test_no_tokenizer(copy_folder: CopyFolder, tmp_path: Path) -> None:
    path = copy_folder()
    (path / "tokenizer.json").unlink()

    with pytest.raises(ModelFolderError, match=r"missing file: .*tokenizer\.json"):
        write_tokenizer(read_model_folder(path), tmp_path / "out.json")


def test_broken_tokenizer(copy_folder: CopyFolder, tmp_path: Path) -> None:
    folder = read_model_folder(copy_folder(files={"tokenizer.json": {"model": {}}}))

    with pytest.raises(ModelFolderError, match=r"cannot read .*out\.json"):
        write_tokenizer(folder, tmp_path / "out.json")
