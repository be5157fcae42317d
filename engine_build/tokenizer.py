"""Makes the gateway's tokenizer.json and checks it against the model. Called by build and verify.

Truncation and padding are taken out: the gateway cuts and pads by itself.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine_build import build_extra
from engine_build.errors import ModelFolderError, VerificationError
from engine_build.json_file import read_json_dict
from engine_build.model_folder import TOKENIZER_FILES, ModelFolder
from gateway.contract import SELF_CHECK_TEXTS, TOKENIZER_FILE

SLOW_VOCABULARIES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")

SAMPLE_TEXTS = (*SELF_CHECK_TEXTS, "", " ", "\n\t", "A", "UPPER lower ÀÉÎ", "👩‍🔬 emoji 😀", "x" * 300, "word " * 200)
"""Texts whose ids are compared with transformers' tokenizer."""


def write_tokenizer(folder: ModelFolder, path: Path) -> Tokenizer:
    """Write tokenizer.json and return it opened.

    Raises:
        ModelFolderError: there is no tokenizer, or it has ids that the word embedding table lacks.
        MissingExtraError: it must be converted and transformers is not installed.
    """
    source = folder.encoder_path / TOKENIZER_FILE
    content = read_json_dict(source) if source.is_file() else _convert(folder)
    content |= {"truncation": None, "padding": None}
    if folder.lower_case:
        content["normalizer"] = _lower_cased(content.get("normalizer"))
    text = json.dumps(content, ensure_ascii=False, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
    tokenizer = open_tokenizer(path)
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if max(ids, default=0) >= folder.vocab_size:
        raise ModelFolderError(
            f"the tokenizer has id {max(ids)}, the word embedding table of {folder.encoder_path} only "
            f"{folder.vocab_size} rows: tokenizer and weights are of different models"
        )
    return tokenizer


def open_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json.

    Raises:
        ModelFolderError: the tokenizers library cannot read it.
    """
    try:
        return Tokenizer.from_file(str(path))
    except Exception as exc:  # the library raises no narrower one
        raise ModelFolderError(f"cannot read {path}: {exc}") from exc


def check_token_ids(folder: ModelFolder, tokenizer: Tokenizer) -> None:
    """Compare with transformers' own tokenizer of the folder.

    Raises:
        VerificationError: a text gets other ids.
        MissingExtraError: transformers is not installed.
    """
    reference = _transformers_tokenizer(folder)
    for text in SAMPLE_TEXTS:
        want = reference(text.lower() if folder.lower_case else text)["input_ids"]
        have = tokenizer.encode(text).ids
        if have != want:
            raise VerificationError(f"the tokenizer gives {have[:12]} for {text[:40]!r}, transformers {want[:12]}")


def _lower_cased(normalizer: dict[str, Any] | None) -> dict[str, Any]:
    """Put lower-casing first, as sentence-transformers does for `do_lower_case`."""
    steps = [{"type": "Lowercase"}, *([normalizer] if normalizer else [])]
    return {"type": "Sequence", "normalizers": steps}


def _convert(folder: ModelFolder) -> dict[str, Any]:
    if not any((folder.encoder_path / name).is_file() for name in SLOW_VOCABULARIES):
        raise ModelFolderError(
            f"missing file: {folder.encoder_path / TOKENIZER_FILE} (or one of {', '.join(TOKENIZER_FILES[1:])})"
        )
    content = json.loads(_transformers_tokenizer(folder).backend_tokenizer.to_str())
    return dict(content)


def _transformers_tokenizer(folder: ModelFolder) -> Any:
    build_extra.require("converting the tokenizer")
    from transformers import AutoTokenizer  # noqa: PLC0415 - optional, and after HF_HUB_OFFLINE was set

    try:
        return AutoTokenizer.from_pretrained(folder.encoder_path, local_files_only=True, use_fast=True)
    except (OSError, ValueError, ImportError) as exc:
        raise ModelFolderError(f"transformers cannot read the tokenizer of {folder.encoder_path}: {exc}") from exc
