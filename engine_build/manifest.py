"""Writes manifest.json, which says what a model directory was made of, and tells whether one is still current.

The fingerprint covers all that decides the result: the source files, the recipe, the builder's own code and the
libraries it ran with.
"""

import hashlib
import json
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engine_build.architecture import bert_architecture
from engine_build.file_hash import sha256
from engine_build.json_file import read_json_dict
from engine_build.model_folder import ModelFolder
from engine_build.recipe import Recipe
from gateway.contract import FORMAT_VERSION, MANIFEST_FILE

TOOLS = ("embedding-gateway", "numpy", "onnx", "onnxruntime", "protobuf", "safetensors", "tokenizers", "tritonclient")
TORCH_TOOLS = ("torch", "transformers")
"""Named only where they made the graph, so that installing them later makes nothing stale."""


def describe_source(folder: ModelFolder) -> dict[str, Any]:
    """What the model is made of: the folder's name, its files' hashes and the versions of the tools."""
    tools = TOOLS if bert_architecture(folder.config) else TOOLS + TORCH_TOOLS
    return {
        "folder": folder.path.absolute().name,
        "model_type": folder.model_type,
        "files": {str(file.relative_to(folder.path)): sha256(file) for file in folder.source_files},
        "tools": {name: _version(name) for name in tools},
    }


def fingerprint(source: dict[str, Any], recipe: Recipe, built_for: dict[str, Any] | None = None) -> str:
    """One digest of all that decides the result; `built_for` is the TensorRT and the GPU, where there are such."""
    package = Path(__file__).parent
    code = {str(file.relative_to(package)): sha256(file) for file in sorted(package.rglob("*.py"))}
    content = json.dumps([FORMAT_VERSION, source, recipe.as_json(), built_for, code], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def built_for(engine: dict[str, Any]) -> dict[str, Any]:
    """What a plan is bound to, out of the manifest's `engine` or what was found of a machine."""
    return {key: engine[key] for key in ("tensorrt", "gpu", "compute_capability")}


def read_manifest(directory: Path) -> dict[str, Any]:
    """Parse a model directory's manifest.

    Raises:
        ModelFolderError: it is missing, or not JSON.
    """
    return read_json_dict(directory / MANIFEST_FILE)


def write_manifest(
    directory: Path,
    *,
    source: dict[str, Any],
    recipe: Recipe,
    verified: dict[str, Any],
    self_check: dict[str, Any],
    engine: dict[str, Any] | None = None,
) -> None:
    """Describe the finished files of a model directory; `engine` says what a plan was built for and from."""
    files = sorted(file for file in directory.rglob("*") if file.is_file() and file.name != MANIFEST_FILE)
    content = {
        "format": FORMAT_VERSION,
        "name": recipe.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": fingerprint(source, recipe, engine and built_for(engine)),
        "files": {str(file.relative_to(directory)): sha256(file) for file in files},
        "source": source,
        "recipe": recipe.as_json(),
        "verified": verified,
        "self_check": self_check,
    }
    if engine is not None:
        content["engine"] = engine
    text = json.dumps(content, ensure_ascii=False, indent=2)
    (directory / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def is_current(directory: Path, wanted_fingerprint: str) -> bool:
    """Whether the directory was built from the same things, and its files are still those that were written."""
    try:
        content = json.loads((directory / MANIFEST_FILE).read_text(encoding="utf-8"))
        return content["fingerprint"] == wanted_fingerprint and all(
            sha256(directory / name) == digest for name, digest in content["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
