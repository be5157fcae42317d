"""Completes a model directory whose plan was put there by hand. Called by commands for `manifest`.

The plan is verified as any other; configuration, tokenizer, warm-up and manifest are then written beside it.
"""

import shutil
from pathlib import Path

from engine_build.build import Checks
from engine_build.engine_steps import REFERENCE_FILE, EngineSteps, plan_run
from engine_build.errors import OptionError
from engine_build.plan import find_python, open_plan
from engine_build.plan_assembly import VERSION_FOLDER, complete_directory, describe_engine
from engine_build.tools import ToolPaths
from engine_build.trtexec import PLAN_FILE
from engine_build.verify_plan import verify_vectors
from engine_build.warm_up import FOLDER
from gateway.contract import TOKENIZER_FILE


def complete_by_hand(directory: Path, steps: EngineSteps, work: Path, paths: ToolPaths, checks: Checks) -> None:
    """Verify `1/model.plan` of a directory, then write everything else.

    Raises:
        OptionError: there is no plan.
        EngineBuildError: the plan does not run here, is not the recipe's, or is not good enough.
    """
    path = directory / VERSION_FOLDER / PLAN_FILE
    if not path.is_file():
        raise OptionError(f"no such file: {path}")
    compared = steps.reference(checks.reference)
    sample = steps.sample(checks.texts)
    with open_plan(find_python(paths.python), path) as plan:
        report = verify_vectors(plan_run(plan), "the plan", sample, steps.recipe, steps.tokenizer)
        facts, engine = plan.facts, describe_engine(directory, plan.machine, plan.facts)
    shutil.rmtree(directory / FOLDER, ignore_errors=True)
    shutil.copyfile(work / TOKENIZER_FILE, directory / TOKENIZER_FILE)
    verified = {"graph": compared, "plan": report.as_json()}
    complete_directory(directory, steps, work / REFERENCE_FILE, facts, verified, engine)
