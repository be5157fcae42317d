"""Reads a local Hugging Face or sentence-transformers folder into one ModelFolder. The first step of every command.

Nothing is looked up elsewhere: what is missing is an error that names the file.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_build.errors import ModelFolderError, UnsupportedModelError
from engine_build.json_file import read_json_dict, read_optional_json_dict
from engine_build.pad_id import read_pad_id
from engine_build.pipeline import Pipeline, read_pipeline
from engine_build.prompts import PROMPTS_FILE, read_prompts
from engine_build.sequence_limit import SequenceLimit, read_sequence_limit
from engine_build.weights import read_vocab_size, weight_files

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    TOKENIZER_CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)
ENCODER_CONFIG_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names under which sentence-transformers has stored the encoder's settings over time; the first found counts."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a model folder says.

    Attributes:
        path: the folder itself.
        config: config.json of the encoder.
        pipeline: what follows the encoder.
        prompts: input type to prompt, as stored.
        lower_case: whether inputs are lower-cased before the tokenizer's own steps.
        hidden_size: H.
        vocab_size: rows of the word embedding table.
        pad_id: fills padding.
        limit: longest sequence and where it comes from.
        weight_files: in the order they are read.
        source_files: every file that decides the result, weights included.
    """

    path: Path
    config: dict[str, Any]
    pipeline: Pipeline
    prompts: dict[str, str]
    lower_case: bool
    hidden_size: int
    vocab_size: int
    pad_id: int
    limit: SequenceLimit
    weight_files: tuple[Path, ...]
    source_files: tuple[Path, ...]

    @property
    def encoder_path(self) -> Path:
        """Folder of config.json, weights and tokenizer."""
        return self.pipeline.encoder_path

    @property
    def model_type(self) -> str:
        """Hugging Face's word for the architecture."""
        return str(self.config["model_type"])


def read_model_folder(path: Path) -> ModelFolder:
    """Read all but the weights' values.

    Raises:
        ModelFolderError: the folder or a file in it is missing or malformed; the message names it.
        UnsupportedModelError: the gateway could not give this model's vectors.
    """
    if not path.is_dir():
        raise ModelFolderError(f"no such folder: {path} (a local model folder is needed; nothing is downloaded)")
    pipeline = read_pipeline(path)
    encoder_path = pipeline.encoder_path
    config = read_json_dict(encoder_path / CONFIG_FILE)
    hidden_size = _hidden_size(config, encoder_path / CONFIG_FILE)
    _check_supported(config, pipeline, hidden_size)
    encoder_config_path = _encoder_config_path(encoder_path)
    encoder_config = read_optional_json_dict(encoder_config_path)
    _check_task(encoder_config, encoder_config_path)
    _warn_of_defaults(read_optional_json_dict(path / PROMPTS_FILE))
    weights = weight_files(encoder_path)
    vocab_size = read_vocab_size(weights, config)
    tokenizer_config = read_optional_json_dict(encoder_path / TOKENIZER_CONFIG_FILE)
    named = [encoder_path / CONFIG_FILE, encoder_config_path, path / PROMPTS_FILE, *pipeline.files]
    tokenizer_files = [encoder_path / name for name in TOKENIZER_FILES]
    return ModelFolder(
        path=path,
        config=config,
        pipeline=pipeline,
        prompts=read_prompts(path),
        lower_case=bool(encoder_config.get("do_lower_case", False)),
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        pad_id=read_pad_id(encoder_path, config, tokenizer_config, vocab_size),
        limit=read_sequence_limit(config, encoder_config, tokenizer_config),
        weight_files=weights,
        source_files=(*weights, *(file for file in (*named, *tokenizer_files) if file.is_file())),
    )


def _encoder_config_path(encoder_path: Path) -> Path:
    paths = [encoder_path / name for name in ENCODER_CONFIG_FILES]
    return next((path for path in paths if path.is_file()), paths[0])


def _hidden_size(config: dict[str, Any], path: Path) -> int:
    if not isinstance(config.get("model_type"), str):
        raise ModelFolderError(f"{path} has no `model_type`")
    hidden_size = config.get("hidden_size", config.get("dim", config.get("d_model")))
    if not isinstance(hidden_size, int):
        raise ModelFolderError(f"{path} has no `hidden_size`")
    return hidden_size


def _check_supported(config: dict[str, Any], pipeline: Pipeline, hidden_size: int) -> None:
    if "auto_map" in config:
        raise UnsupportedModelError(
            f"{pipeline.encoder_path / CONFIG_FILE}: `auto_map` asks for code that comes with the model; it is not run"
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UnsupportedModelError(
            f"{pipeline.encoder_path / CONFIG_FILE}: position embeddings of type "
            f"{config['position_embedding_type']} are not supported"
        )
    if pipeline.embedding_dimension not in (None, hidden_size):
        raise ModelFolderError(
            f"pooling expects {pipeline.embedding_dimension} dimensions, the encoder in "
            f"{pipeline.encoder_path} gives {hidden_size}"
        )


def _check_task(encoder_config: dict[str, Any], path: Path) -> None:
    task = encoder_config.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise UnsupportedModelError(f"{path}: transformer_task {task} is not supported; feature-extraction is")


def _warn_of_defaults(config: dict[str, Any]) -> None:
    """Name what sentence-transformers does to every input unasked and the gateway does only when asked."""
    if config.get("default_prompt_name"):
        logger.warning("default prompt %r is not applied unless a request asks for it", config["default_prompt_name"])
    if config.get("truncate_dim"):
        logger.warning("truncate_dim %s is not applied unless a request asks for it", config["truncate_dim"])
