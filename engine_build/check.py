"""Holds a model directory against its own manifest and against the machine. Called by cli for `check`.

A plan loads only with the TensorRT and the class of GPU that it was built for. TensorRT's own words for that help
nobody, so both are compared before.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_build.errors import ForeignEngineError
from engine_build.file_hash import sha256
from engine_build.manifest import built_for, read_manifest
from engine_build.plan_facts import Machine

logger = logging.getLogger(__name__)


def check_directory(directory: Path, machine: Machine | None) -> None:
    """Compare; without a machine only the files.

    Raises:
        ForeignEngineError: a file is not the one that was built, or the plan is for another TensorRT or GPU.
        ModelFolderError: there is no manifest.
    """
    manifest = read_manifest(directory)
    problems = [*changed_files(directory, manifest.get("files", {}))]
    engine = manifest.get("engine")
    if engine is not None and machine is not None:
        problems += foreign(engine, machine.as_json())
    if problems:
        raise ForeignEngineError(f"{directory}: {'; '.join(problems)}; rebuild with {rebuild_command(manifest)}")
    logger.info("%s is as it was built%s", directory, f" for {_describe(engine)}" if engine else "")


def changed_files(directory: Path, files: dict[str, str]) -> Iterator[str]:
    """Say which files are missing or differ from what was built."""
    for name, digest in files.items():
        file = directory / name
        if not file.is_file():
            yield f"{name} is missing"
        elif file.stat().st_size == 0:
            yield f"{name} is empty"
        elif sha256(file) != digest:
            yield f"{name} is not the file that was built"


def foreign(engine: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Say what a plan was built for, where the machine has something else."""
    if built_for(engine) == built_for(found):
        return []
    return [f"built for {_describe(engine)}, found {_describe(found)}"]


def rebuild_command(manifest: dict[str, Any]) -> str:
    """The command that builds the directory anew."""
    recipe, source = manifest["recipe"], manifest["source"]
    target = recipe["target"]
    return f"`python -m engine_build all --model {source['folder']} --target {target} --name {manifest['name']}`"


def _describe(engine: dict[str, Any]) -> str:
    return f"TensorRT {engine['tensorrt']} on {engine['gpu']} (compute capability {engine['compute_capability']})"
