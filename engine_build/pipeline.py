"""Reads what sentence-transformers does after the encoder: modules.json, pooling, normalisation.

Called by model_folder. Whatever the gateway would not do the same way is refused here, so that no other vectors are
served silently.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_build.errors import ModelFolderError, UnsupportedModelError
from engine_build.json_file import read_json, read_json_dict, read_optional_json_dict
from gateway.contract import Pooling

logger = logging.getLogger(__name__)

MODULES_FILE = "modules.json"

POOLING_MODES = {
    "mean": Pooling.MEAN,
    "cls": Pooling.CLS,
    "lasttoken": Pooling.LAST_TOKEN,
    "max": Pooling.MAX,
}
"""sentence-transformers' word for each pooling that the gateway has."""

BOOLEAN_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of the older form of 1_Pooling/config.json to the words of the newer one."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps of a sentence-transformers model.

    Attributes:
        encoder_path: folder of config.json, weights and tokenizer.
        pooling: how token embeddings become one.
        normalize: whether it ends in L2 normalisation.
        pools_prompt: whether the tokens of a prompt take part in pooling.
        embedding_dimension: what pooling expects of the encoder; None when it does not say.
        files: the files that said so.
    """

    encoder_path: Path
    pooling: Pooling
    normalize: bool
    pools_prompt: bool
    embedding_dimension: int | None
    files: tuple[Path, ...]


def read_pipeline(folder: Path) -> Pipeline:
    """Read modules.json and what it points to.

    Raises:
        ModelFolderError: a file is missing or malformed.
        UnsupportedModelError: a module or pooling mode that the gateway does not have.
    """
    modules_path = folder / MODULES_FILE
    if not modules_path.is_file():
        logger.info("no %s: mean pooling and no normalisation, as sentence-transformers does", MODULES_FILE)
        return Pipeline(folder, Pooling.MEAN, False, True, None, ())
    modules = [(_kind(module), folder / module["path"]) for module in _read_modules(modules_path)]
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedModelError(
            f"{modules_path}: the pipeline {' -> '.join(kinds)} is not supported; "
            "only Transformer -> Pooling, with or without Normalize, gives the same vectors here"
        )
    pooling_path = modules[1][1] / "config.json"
    config = read_json_dict(pooling_path)
    if len(modules) == 3:
        _check_normalize(modules[2][1] / "config.json")
    return Pipeline(
        encoder_path=modules[0][1],
        pooling=_pooling(config, pooling_path),
        normalize=len(modules) == 3,
        pools_prompt=config.get("include_prompt", True),
        embedding_dimension=config.get("embedding_dimension", config.get("word_embedding_dimension")),
        files=(modules_path, pooling_path),
    )


def _read_modules(path: Path) -> list[dict[str, str]]:
    modules = read_json(path)
    well_formed = isinstance(modules, list) and all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and _is_inside(module.get("path"))
        for module in modules
    )
    if not well_formed:
        raise ModelFolderError(f"{path} is not a list of modules with a `type` and a `path` inside the folder")
    return list(modules)


def _is_inside(path: object) -> bool:
    return isinstance(path, str) and not Path(path).is_absolute() and ".." not in Path(path).parts


def _kind(module: dict[str, str]) -> str:
    """Class name of one of sentence-transformers' own modules; the full name of a foreign one."""
    kind = module["type"]
    return kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind


def _pooling(config: dict[str, Any], path: Path) -> Pooling:
    named = config.get("pooling_mode")
    if named is None:
        modes = [mode for key, mode in BOOLEAN_POOLING_MODES.items() if config.get(key)] or ["mean"]
    else:
        modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise UnsupportedModelError(
            f"{path}: pooling {' + '.join(map(str, modes))} is not supported; one of {', '.join(POOLING_MODES)} is"
        )
    return POOLING_MODES[modes[0]]


def _check_normalize(path: Path) -> None:
    config = read_optional_json_dict(path)
    names = {config.get(key) or "sentence_embedding" for key in ("module_input_name", "module_output_name")}
    if names != {"sentence_embedding"}:
        raise UnsupportedModelError(f"{path}: only sentence embeddings are normalised, not {', '.join(sorted(names))}")
