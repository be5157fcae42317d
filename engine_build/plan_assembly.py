"""Fills the model directory of a TensorRT plan out of a finished build folder. Called by build.

Called with a directory that nobody sees yet; nothing goes into it that was not verified.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from engine_build.engine_steps import REFERENCE_FILE, EngineSteps
from engine_build.file_hash import sha256
from engine_build.manifest import write_manifest
from engine_build.model_config import config_text, input_type
from engine_build.onnx_encoder import OnnxEncoder
from engine_build.plan import open_plan
from engine_build.plan_facts import Machine, PlanFacts
from engine_build.reference import ReferenceKind
from engine_build.self_check import self_check
from engine_build.tools import Tools
from engine_build.trtexec import LOG_FILE, PLAN_FILE
from engine_build.trtexec_arguments import ONNX_FILE
from engine_build.warm_up import write_warm_up
from gateway.contract import CONFIG_FILE, TOKENIZER_FILE

VERSION_FOLDER = "1"
TRITON_VERSION_FILE = "TRITON_VERSION_FILE"
"""Variable that names a file with the version of the Triton that will serve; Dockerfile.triton sets it."""
WARM_UP_TEXT = "The engine is warmed up on these words."


def run_steps(steps: EngineSteps, tools: Tools, reference: ReferenceKind, texts: int) -> dict[str, Any]:
    """Make everything up to the verified plan; returns what the verifications found.

    Raises:
        EngineBuildError: a step failed; those before it are kept.
    """
    compared = steps.reference(reference)
    sample = steps.sample(texts)
    steps.graph(sample)
    steps.plan(tools)
    return {"graph": compared, "plan": steps.verify_plan(tools, sample)}


def assemble_plan(directory: Path, work: Path, steps: EngineSteps, tools: Tools, verified: dict[str, Any]) -> None:
    """Copy plan and log out of the build folder and write the rest.

    Raises:
        EngineBuildError: the plan is not the recipe's; the directory is then half-filled.
    """
    (directory / VERSION_FOLDER).mkdir()
    shutil.copyfile(work / PLAN_FILE, directory / VERSION_FOLDER / PLAN_FILE)
    for name in (LOG_FILE, TOKENIZER_FILE):
        shutil.copyfile(work / name, directory / name)
    with open_plan(tools.python, work / PLAN_FILE) as plan:
        facts = plan.facts
    made_from = {
        "triton": triton_version(),
        "trtexec": str(tools.trtexec.version),
        "arguments": steps.arguments(tools.trtexec),
        "onnx_sha256": sha256(work / ONNX_FILE),
    }
    engine = describe_engine(directory, tools.machine, facts) | made_from
    complete_directory(directory, steps, work / REFERENCE_FILE, facts, verified, engine)


def complete_directory(
    directory: Path,
    steps: EngineSteps,
    reference: Path,
    facts: PlanFacts,
    verified: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Write config.pbtxt, warm-up and manifest beside a plan and its tokenizer.

    Args:
        directory: has the plan in its version folder, and the tokenizer.
        steps: recipe, source and tokenizer.
        reference: the FP32 graph, which gives the vectors of the self-check.
        facts: the plan's tensors and profiles.
        verified: what the verifications found.
        engine: what the plan was built for and from.
    """
    recipe, tokenizer = steps.recipe, steps.tokenizer
    (directory / CONFIG_FILE).write_text(config_text(recipe, facts), encoding="utf-8")
    write_warm_up(directory, recipe, tokenizer.encode(WARM_UP_TEXT).ids, input_type(facts))
    write_manifest(
        directory,
        source=steps.source,
        recipe=recipe,
        verified=verified,
        self_check=self_check(OnnxEncoder(reference), tokenizer, recipe),
        engine=engine,
    )


def describe_engine(directory: Path, machine: Machine, facts: PlanFacts) -> dict[str, Any]:
    """What the manifest says of the plan in a model directory."""
    plan = directory / VERSION_FOLDER / PLAN_FILE
    return {
        **machine.as_json(),
        "plan_sha256": sha256(plan),
        "plan_bytes": plan.stat().st_size,
        **facts.as_json(),
    }


def triton_version() -> str | None:
    """Version of the Triton that will serve, where the builder's image knows it."""
    file = os.environ.get(TRITON_VERSION_FILE)
    return Path(file).read_text(encoding="utf-8").strip() if file else None
