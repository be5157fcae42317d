"""Fills the model directory of the embedded target: export, tokenizer, configuration, verification, manifest.

Called by build, with a directory that nobody sees yet.
"""

import shutil
from pathlib import Path
from typing import Any

from engine_build.export import export_onnx
from engine_build.manifest import write_manifest
from engine_build.model_config import config_text
from engine_build.model_folder import ModelFolder
from engine_build.onnx_encoder import OnnxEncoder
from engine_build.recipe import Recipe
from engine_build.reference import ReferenceKind
from engine_build.self_check import self_check
from engine_build.tokenizer import write_tokenizer
from engine_build.verify import verify
from gateway.contract import CONFIG_FILE, TOKENIZER_FILE

ONNX_FILE = "model.onnx"
VERSION_FOLDER = "1"
TEMPLATE = Path(__file__).parent / "templates" / "model.py"
"""The Python-backend model that runs the ONNX file beside it."""


def assemble(
    folder: ModelFolder, recipe: Recipe, source: dict[str, Any], reference: ReferenceKind, directory: Path
) -> None:
    """Write every file of the model.

    Raises:
        EngineBuildError: whatever went wrong; the directory is then half-filled.
    """
    onnx_path = directory / VERSION_FOLDER / ONNX_FILE
    onnx_path.parent.mkdir()
    export_onnx(folder, onnx_path, recipe.graph)
    tokenizer = write_tokenizer(folder, directory / TOKENIZER_FILE)
    (directory / CONFIG_FILE).write_text(config_text(recipe), encoding="utf-8")
    shutil.copyfile(TEMPLATE, onnx_path.parent / TEMPLATE.name)
    verification = verify(folder, onnx_path, tokenizer, reference, recipe.pooling)
    write_manifest(
        directory,
        source=source,
        recipe=recipe,
        verified=verification.as_json(),
        self_check=self_check(OnnxEncoder(onnx_path), tokenizer, recipe),
    )
