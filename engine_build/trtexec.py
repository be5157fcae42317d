"""Builds a plan with trtexec and makes sure that it loads and runs. Called by engine_steps and cli.

A plan counts only with all three: the line `&&&& PASSED`, the file, and a run of the loaded plan that ends with 0.
trtexec 8.6 was seen to crash after PASSED with a good plan, and CUDA errors may end it without a line of failure.
"""

import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine_build.engine_recipe import EngineRecipe, Profile, Shape
from engine_build.errors import EngineError
from engine_build.precision import GraphForm
from engine_build.process_log import Outcome, run_logged
from engine_build.tensorrt_version import TensorRTVersion, read_banner
from engine_build.trtexec_arguments import build_arguments, load_arguments
from gateway.contract import ATTENTION_MASK, INPUT_IDS

logger = logging.getLogger(__name__)

NGC_PATH = Path("/usr/src/tensorrt/bin/trtexec")
"""Where NVIDIA's images have it."""
PLAN_FILE = "model.plan"
UNFINISHED_PLAN = "unfinished.plan"
LOG_FILE = "trtexec.log"
BANNER_TIMEOUT_S = 60
LEAST_FREE_BYTES = 2**20

ADVICE = (
    (r"No space left on device", "free some disk, or name another place with --build-folder"),
    (r"[Oo]ut of memory|OutOfMemory|OOM", "less --workspace, or a smaller last shape in --profile"),
    (r"[Cc]ould not find any implementation", "more --workspace"),
    (r"Unknown option|[Uu]nrecognized option", "a trtexec of another version; see --trtexec"),
    (r"[Ff]ailed to parse|No importer|UNSUPPORTED_NODE", "TensorRT cannot read this graph: another --precision"),
    (r"no CUDA-capable device|CUDA driver|Cuda failure|CUDA error", "look at the GPU and its driver: nvidia-smi"),
)
"""What trtexec prints to what helps."""


@dataclass(frozen=True, slots=True)
class Trtexec:
    """A trtexec that was found, and its version."""

    path: str
    version: TensorRTVersion


def find_trtexec(asked: str | None) -> Trtexec:
    """The one asked for, else the one on PATH, else the one of NVIDIA's images.

    Raises:
        EngineError: there is none, it cannot be run, or its version is not supported.
    """
    found = shutil.which(asked or "trtexec") or (str(NGC_PATH) if NGC_PATH.is_file() and not asked else None)
    if found is None:
        raise EngineError(
            f"no {asked or 'trtexec'}: it comes with TensorRT; build in the builder image of Dockerfile.triton, "
            "or name it with --trtexec"
        )
    path = os.path.abspath(found)  # it will run in another folder
    try:
        shown = subprocess.run(  # noqa: S603 - the program that was asked for
            [path, "--help"], capture_output=True, text=True, errors="replace", timeout=BANNER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EngineError(f"cannot run {path}: {exc}") from exc
    return Trtexec(path, read_banner(shown.stdout + shown.stderr))


def build_plan(
    tool: Trtexec, recipe: EngineRecipe, form: GraphForm, folder: Path, ids: Sequence[int], islands: Sequence[str] = ()
) -> None:
    """Build `model.plan` from the `model.onnx` of a folder; `trtexec.log` keeps what trtexec printed.

    Args:
        tool: trtexec.
        recipe: shapes, memory, effort.
        form: the graph's precision and output.
        folder: receives the plan when it is good, and no plan when it is not.
        ids: real token ids of at least one input, repeated to fill the batches that are run.
        islands: layers of a mixed graph that stay in FP32.

    Raises:
        EngineError: it could not be built, or does not run; the message says what to try.
    """
    log, unfinished = folder / LOG_FILE, folder / UNFINISHED_PLAN
    log.write_text("", encoding="utf-8")
    try:
        arguments = build_arguments(recipe, form, tool.version, UNFINISHED_PLAN, islands)
        logger.info("building with TensorRT %s; the log is %s", tool.version, log)
        outcome = run_logged([tool.path, *arguments], folder, log)
        if not outcome.passed or not _has_content(unfinished):
            raise _failure("building the plan", outcome, folder)
        if outcome.returncode:
            logger.warning("trtexec ended with %d after it had passed; the plan decides", outcome.returncode)
        for index, profile in enumerate(recipe.profiles):
            _run_plan(tool, profile, index if len(recipe.profiles) > 1 else None, folder, ids)
        unfinished.replace(folder / PLAN_FILE)
    finally:
        for file in (unfinished, *(folder / name for name in _input_files().values())):
            file.unlink(missing_ok=True)


def _run_plan(tool: Trtexec, profile: Profile, index: int | None, folder: Path, ids: Sequence[int]) -> None:
    files = _input_files()
    write_inputs(folder, files, profile.optimum, ids)
    arguments = load_arguments(tool.version, UNFINISHED_PLAN, profile.optimum, files, index)
    outcome = run_logged([tool.path, *arguments], folder, folder / LOG_FILE)
    if outcome.returncode or not outcome.passed:
        raise _failure("running the plan", outcome, folder)


def write_inputs(folder: Path, files: dict[str, str], shape: Shape, ids: Sequence[int]) -> None:
    """Write raw INT32 ids and an all-ones mask of a shape."""
    np.resize(np.array(ids, np.int32), shape).tofile(folder / files[INPUT_IDS])
    np.ones(shape, np.int32).tofile(folder / files[ATTENTION_MASK])


def _input_files() -> dict[str, str]:
    return {INPUT_IDS: "ids.raw", ATTENTION_MASK: "mask.raw"}


def _has_content(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _failure(step: str, outcome: Outcome, folder: Path) -> EngineError:
    """The error of a run that went wrong; the last lines are logged, so that the error stays one line."""
    logger.error("trtexec's last lines:\n%s", outcome.last_lines or "(it printed nothing)")
    advice = next((help_ for pattern, help_ in ADVICE if re.search(pattern, outcome.text)), None)
    if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
        advice = ADVICE[0][1]
    return EngineError(f"{step} failed: {_ending(outcome)}; {advice or f'see {folder / LOG_FILE}'}")


def _ending(outcome: Outcome) -> str:
    if outcome.returncode < 0:
        name = signal.Signals(-outcome.returncode).name
        hint = ", as the kernel does where memory is short" if name == "SIGKILL" else ""
        return f"trtexec was ended by {name}{hint}"
    if outcome.returncode:
        return f"trtexec ended with {outcome.returncode}"
    if not outcome.passed:
        return "trtexec ended with 0, yet without its line `&&&& PASSED`"
    return "trtexec ended with 0 and wrote no plan"
