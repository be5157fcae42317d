"""Builds a model directory and publishes it, unless the same is there already. Called by cli.

Nothing becomes visible before all of it has succeeded.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from engine_build.manifest import describe_source, fingerprint, is_current
from engine_build.model_folder import read_model_folder
from engine_build.recipe import Options, Target, plan
from engine_build.reference import ReferenceKind
from engine_build.repository import open_repository

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a built model goes.

    Attributes:
        repository: Triton's; a model appears there only when Triton can load it.
        build_folder: for `tensorrt`: what its plan is built from.
    """

    repository: Path
    build_folder: Path

    def root(self, target: Target) -> Path:
        """Folder that receives the target's model directories."""
        return self.repository if target is Target.EMBEDDED else self.build_folder


def build(model: Path, options: Options, place: Place, reference: ReferenceKind, *, force: bool = False) -> Path:
    """Build and publish, unless the same is there already; returns the model directory.

    Raises:
        EngineBuildError: whatever went wrong; what was published before is still there.
    """
    started = time.monotonic()
    folder = read_model_folder(model)
    recipe = plan(folder, options)
    source = describe_source(folder)
    with open_repository(place.root(recipe.target)) as repository:
        directory = repository.directory(recipe.name)
        if not force and is_current(directory, fingerprint(source, recipe)):
            logger.info("%s is up to date", directory)
            return directory
        with repository.staged(recipe.name) as staged:
            from engine_build.assembly import assemble  # noqa: PLC0415 - imports onnx, which `up to date` does without

            assemble(folder, recipe, source, reference, staged)
    logger.info("built %s in %.1f s", directory, time.monotonic() - started)
    if recipe.target is Target.TENSORRT:
        logger.info("this is no Triton model yet: the TensorRT plan is still to be built from its model.onnx")
    return directory
