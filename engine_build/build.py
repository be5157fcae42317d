"""Builds a model directory and publishes it, unless the same is there already. Called by cli.

Nothing becomes visible before all of it has succeeded.
"""

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_build.manifest import built_for, describe_source, fingerprint, is_current
from engine_build.model_folder import ModelFolder, read_model_folder
from engine_build.recipe import Options, Recipe, Target, plan, suited
from engine_build.reference import ReferenceKind
from engine_build.repository import open_repository
from engine_build.texts import DEFAULT_COUNT
from engine_build.tokenizer import write_tokenizer
from engine_build.tools import ToolPaths, find_tools
from engine_build.work_folder import open_work_folder
from gateway.contract import TOKENIZER_FILE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a built model goes.

    Attributes:
        repository: Triton's; a model appears there only when Triton can load it.
        build_folder: for `tensorrt`: keeps what the steps made, so that a stopped build goes on.
    """

    repository: Path
    build_folder: Path


@dataclass(frozen=True, slots=True)
class Checks:
    """How a model is verified.

    Attributes:
        reference: what its graph is compared with.
        texts: how many a plan is compared on.
    """

    reference: ReferenceKind = ReferenceKind.AUTO
    texts: int = DEFAULT_COUNT


@dataclass(frozen=True, slots=True)
class Job:
    """A model folder, read, and what is to become of it."""

    folder: ModelFolder
    recipe: Recipe
    source: dict[str, Any]
    checks: Checks


def build(
    model: Path,
    options: Options,
    place: Place,
    checks: Checks = Checks(),
    *,
    paths: ToolPaths = ToolPaths(),  # noqa: B008 - frozen
    force: bool = False,
) -> Path:
    """Build and publish, unless the same is there already; returns the model directory.

    Raises:
        EngineBuildError: whatever went wrong; what was published before is still there.
    """
    started = time.monotonic()
    folder = read_model_folder(model)
    job = Job(folder, plan(folder, options), describe_source(folder), checks)
    tensorrt = job.recipe.target is Target.TENSORRT
    directory = _build_plan(job, place, paths, force=force) if tensorrt else _build_embedded(job, place, force=force)
    if directory is None:
        return place.repository / job.recipe.name
    logger.info("built %s in %.1f s", directory, time.monotonic() - started)
    return directory


def _build_embedded(job: Job, place: Place, *, force: bool) -> Path | None:
    with open_repository(place.repository) as repository:
        directory = repository.directory(job.recipe.name)
        if not force and is_current(directory, fingerprint(job.source, job.recipe)):
            logger.info("%s is up to date", directory)
            return None
        with repository.staged(job.recipe.name) as staged:
            from engine_build.assembly import assemble  # noqa: PLC0415 - imports onnx, which `up to date` does without

            assemble(job.folder, job.recipe, job.source, job.checks.reference, staged)
    return directory


def _build_plan(job: Job, place: Place, paths: ToolPaths, *, force: bool) -> Path | None:
    tools = find_tools(paths)
    job = replace(job, recipe=suited(job.recipe, tools.trtexec.version))
    wanted = fingerprint(job.source, job.recipe, built_for(tools.machine.as_json()))
    directory = place.repository / job.recipe.name
    if not force and is_current(directory, wanted):
        logger.info("%s is up to date", directory)
        return None
    from engine_build.engine_steps import EngineSteps  # noqa: PLC0415 - imports onnx, which `up to date` does without
    from engine_build.plan_assembly import assemble_plan, run_steps  # noqa: PLC0415

    with open_work_folder(place.build_folder / job.recipe.name, force=force) as work:
        tokenizer = write_tokenizer(job.folder, work.path / TOKENIZER_FILE)
        steps = EngineSteps(job.folder, job.recipe, job.source, tokenizer, work)
        verified = run_steps(steps, tools, job.checks.reference, job.checks.texts)
        # The repository is held only for the copy, not for the minutes that the plan takes.
        with open_repository(place.repository) as repository, repository.staged(job.recipe.name) as staged:
            assemble_plan(staged, work.path, steps, tools, verified)
    return directory
