"""Finds the token id that fills padding. Called by model_folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_build.errors import ModelFolderError
from engine_build.json_file import read_optional_json_dict
from gateway.contract import TOKENIZER_FILE


def read_pad_id(
    encoder_path: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], vocab_size: int
) -> int:
    """config.json's `pad_token_id`, else the id of the tokenizer's pad token.

    Raises:
        ModelFolderError: no file names one, or it lies outside the word embedding table.
    """
    pad_id = config.get("pad_token_id")
    if pad_id is None:
        pad_id = _tokenizer_pad_id(encoder_path / TOKENIZER_FILE, tokenizer_config.get("pad_token"))
    if pad_id is None:
        raise ModelFolderError(f"{encoder_path}: neither config.json nor the tokenizer's files name the pad id")
    if not isinstance(pad_id, int) or not 0 <= pad_id < vocab_size:
        raise ModelFolderError(f"{encoder_path}: the pad id {pad_id} is not one of the {vocab_size} ids of the model")
    return pad_id


def _tokenizer_pad_id(path: Path, pad_token: object) -> object:
    """Pad tokens are stored as a text, or as an object that holds it."""
    text = pad_token.get("content") if isinstance(pad_token, dict) else pad_token
    added = read_optional_json_dict(path).get("added_tokens", [])
    return next((token["id"] for token in added if text is not None and token["content"] == text), None)
