"""Model folders for the tests of engine_build, made once and copied where a test changes one."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine_build.model_folder import ModelFolder, read_model_folder
from engine_build.tools import ToolPaths
from tests.engine_build.tiny import CopyFolder, byte_pairs, change_json, make_folder, tiny_model, word_piece


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One plain Hugging Face folder for each architecture; not to be written to."""
    root = tmp_path_factory.mktemp("models")
    tokenizers = {"bert": word_piece, "distilbert": word_piece}
    return {
        kind: make_folder(root / kind, tiny_model(kind), tokenizers.get(kind, byte_pairs)())
        for kind in ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet")
    }


@pytest.fixture
def copy_folder(model_folders: Mapping[str, Path], tmp_path: Path) -> CopyFolder:
    """Copy a folder, so that it may be changed; JSON files given by name are merged into it."""

    def copy(kind: str = "bert", files: Mapping[str, Any] | None = None) -> Path:
        folder = Path(shutil.copytree(model_folders[kind], tmp_path / f"tiny-{kind}"))
        for name, content in (files or {}).items():
            change_json(folder / name, content)
        return folder

    return copy


@pytest.fixture
def bert(model_folders: Mapping[str, Path]) -> ModelFolder:
    """The tiny BERT, read."""
    return read_model_folder(model_folders["bert"])


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> ToolPaths:
    """The stand-ins for trtexec and for a Python with tensorrt, run by this Python; for process handling alone."""
    folder = tmp_path_factory.mktemp("tools with a blank")
    for name in ("trtexec", "tensorrt_python"):
        program = Path(__file__).parent / "stand_in" / name
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
        (folder / name).chmod(0o755)
    return ToolPaths(str(folder / "trtexec"), str(folder / "tensorrt_python"))
