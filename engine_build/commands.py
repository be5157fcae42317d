"""What each command of the command line does. Called by cli, through arguments.

Slow libraries are imported where they are used, so that help and mistakes are quick.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from engine_build.build import Checks, Place, build
from engine_build.errors import OptionError
from engine_build.manifest import describe_source
from engine_build.model_folder import ModelFolder, read_model_folder
from engine_build.precision import Precision
from engine_build.recipe import Instances, Options, Queue, Recipe, Target, plan, suited
from engine_build.tools import ToolPaths
from gateway.contract import TOKENIZER_FILE

if TYPE_CHECKING:
    from engine_build.engine_steps import EngineSteps


def export(options: argparse.Namespace) -> None:
    """Write the ONNX graph alone."""
    from engine_build.export import export_onnx  # noqa: PLC0415
    from engine_build.tensorrt_version import parse_version  # noqa: PLC0415

    folder, recipe = _read(options)
    if options.tensorrt_version:
        recipe = suited(recipe, parse_version(options.tensorrt_version))
    with _aside(options.output) as path:
        export_onnx(folder, path, recipe.graph)


def trtexec(options: argparse.Namespace) -> None:
    """Build a plan from an ONNX file that `export` wrote with the same options; unverified."""
    from engine_build.graph_islands import fp32_layers  # noqa: PLC0415
    from engine_build.trtexec import LOG_FILE, PLAN_FILE, build_plan, find_trtexec  # noqa: PLC0415
    from engine_build.trtexec_arguments import ONNX_FILE  # noqa: PLC0415

    _, recipe = _read(options)
    if recipe.engine is None:
        raise OptionError("trtexec builds for --target tensorrt")
    with _aside(options.output) as path:
        (path.parent / ONNX_FILE).symlink_to(options.onnx.resolve())
        ids = list(range(1, min(recipe.vocab_size, 1000)))
        try:
            tool = find_trtexec(options.trtexec)
            islands = fp32_layers(options.onnx) if recipe.graph.precision is Precision.MIXED else []
            build_plan(tool, recipe.engine, recipe.graph, path.parent, ids, islands)
        finally:
            _keep_log(path.parent / LOG_FILE, options.output)
        (path.parent / PLAN_FILE).rename(path)


def verify(options: argparse.Namespace) -> None:
    """Compare an ONNX file, a plan or a model on a Triton with the reference."""
    if options.onnx is not None:
        _verify_onnx(options)
    else:
        _verify_vectors(options)


def config(options: argparse.Namespace) -> None:
    """Print config.pbtxt."""
    from engine_build.model_config import config_text  # noqa: PLC0415
    from engine_build.plan import find_python, open_plan  # noqa: PLC0415

    _, recipe = _read(options)
    facts = None
    if options.plan is not None:
        with open_plan(find_python(options.tensorrt_python), options.plan) as opened:
            facts = opened.facts
    sys.stdout.write(config_text(recipe, facts))


def manifest(options: argparse.Namespace) -> None:
    """Write the manifest of a directory whose other files are there."""
    from engine_build.hand_made import complete_by_hand  # noqa: PLC0415

    with _steps(options) as (steps, work):
        complete_by_hand(options.directory, steps, work, _paths(options), _checks(options))


def check(options: argparse.Namespace) -> None:
    """Hold a model directory against its manifest and this machine."""
    from engine_build.check import check_directory  # noqa: PLC0415
    from engine_build.plan import find_python, read_machine  # noqa: PLC0415

    machine = None if options.files_only else read_machine(find_python(options.tensorrt_python))
    check_directory(options.directory, machine)


def build_all(options: argparse.Namespace) -> None:
    """Do everything, and publish."""
    if options.dry_run:
        _show_command(options)
        return
    place = Place(options.repo, options.build_folder)
    build(options.model, _options(options), place, _checks(options), paths=_paths(options), force=options.force)


def _show_command(options: argparse.Namespace) -> None:
    """Print the line that builds the plan, and run nothing."""
    from engine_build.export import export_onnx  # noqa: PLC0415
    from engine_build.graph_islands import fp32_layers  # noqa: PLC0415
    from engine_build.tensorrt_version import parse_version  # noqa: PLC0415
    from engine_build.trtexec import UNFINISHED_PLAN, Trtexec, find_trtexec  # noqa: PLC0415
    from engine_build.trtexec_arguments import build_arguments  # noqa: PLC0415

    folder, recipe = _read(options)
    if recipe.engine is None:
        raise OptionError("--dry-run shows trtexec's line: it is for --target tensorrt")
    asked = options.tensorrt_version
    tool = Trtexec("trtexec", parse_version(asked)) if asked else find_trtexec(options.trtexec)
    islands: list[str] = []
    if recipe.graph.precision is Precision.MIXED and not tool.version.strongly_typed:
        with tempfile.TemporaryDirectory() as aside:
            export_onnx(folder, Path(aside) / "model.onnx", recipe.graph)
            islands = fp32_layers(Path(aside) / "model.onnx")
    arguments = build_arguments(recipe.engine, recipe.graph, tool.version, UNFINISHED_PLAN, islands)
    work = options.build_folder / recipe.name
    sys.stdout.write(f"cd {shlex.quote(str(work))} && {shlex.join([tool.path, *arguments])}\n")


def _verify_onnx(options: argparse.Namespace) -> None:
    from engine_build.tokenizer import write_tokenizer  # noqa: PLC0415
    from engine_build.verify import verify as verify_graph  # noqa: PLC0415

    folder = read_model_folder(options.model)
    with tempfile.TemporaryDirectory() as aside:
        tokenizer = write_tokenizer(folder, Path(aside) / "tokenizer.json")
    verify_graph(folder, options.onnx, tokenizer, options.reference, options.pooling_mode)


def _verify_vectors(options: argparse.Namespace) -> None:
    from engine_build.engine_steps import plan_run  # noqa: PLC0415
    from engine_build.plan import find_python, open_plan  # noqa: PLC0415
    from engine_build.triton_model import open_triton_model  # noqa: PLC0415
    from engine_build.verify_plan import verify_vectors  # noqa: PLC0415

    with _steps(options) as (steps, _):
        steps.reference(options.reference)
        sample, recipe = steps.sample(options.texts), steps.recipe
        if options.plan is not None:
            with open_plan(find_python(options.tensorrt_python), options.plan) as opened:
                verify_vectors(plan_run(opened), options.plan.name, sample, recipe, steps.tokenizer)
            return
        with open_triton_model(options.triton, recipe.name) as run:
            verify_vectors(run, f"{recipe.name} on Triton", sample, recipe, steps.tokenizer)


@contextmanager
def _steps(options: argparse.Namespace) -> "Iterator[tuple[EngineSteps, Path]]":
    """The steps of a model's build, in its build folder."""
    from engine_build.engine_steps import EngineSteps  # noqa: PLC0415
    from engine_build.tokenizer import write_tokenizer  # noqa: PLC0415
    from engine_build.work_folder import open_work_folder  # noqa: PLC0415

    folder, recipe = _read(options)
    with open_work_folder(options.build_folder / recipe.name) as work:
        tokenizer = write_tokenizer(folder, work.path / TOKENIZER_FILE)
        yield EngineSteps(folder, recipe, describe_source(folder), tokenizer, work), work.path


@contextmanager
def _aside(output: Path) -> Iterator[Path]:
    """A place beside the output to write it to; it takes its own place when the block ends well."""
    if not output.parent.is_dir():
        raise OptionError(f"no such folder: {output.parent}")
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".") as folder:
        path = Path(folder) / output.name
        yield path
        path.rename(output)


def _keep_log(log: Path, output: Path) -> None:
    if log.is_file():
        log.replace(output.with_name(f"{output.name}.log"))


def _read(options: argparse.Namespace) -> tuple[ModelFolder, Recipe]:
    folder = read_model_folder(options.model)
    return folder, plan(folder, _options(options))


def _paths(options: argparse.Namespace) -> ToolPaths:
    return ToolPaths(options.trtexec, options.tensorrt_python)


def _checks(options: argparse.Namespace) -> Checks:
    return Checks(options.reference, options.texts)


def _options(options: argparse.Namespace) -> Options:
    return Options(
        target=Target(options.target),
        name=options.name,
        max_batch_size=options.max_batch_size,
        max_sequence_length=options.max_sequence_length,
        length_buckets=options.length_buckets,
        pooling=options.pooling_mode,
        prompts=dict(options.prompt),
        pool_in_engine=options.pooling == "engine",
        precision=options.precision,
        output=options.output_type,
        profiles=tuple(options.profile),
        workspace_mib=options.workspace,
        builder_level=options.builder_level,
        instances=Instances(options.instances, options.gpus, options.busy_wait_events),
        queue=Queue(max_delay_us=options.queue_delay_us),
    )
