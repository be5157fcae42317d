"""The options of the command line, and which command takes which. Called by cli."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from engine_build import commands
from engine_build.engine_recipe import DEFAULT_WORKSPACE_MIB, Profile
from engine_build.errors import OptionError
from engine_build.precision import FloatType, Precision
from engine_build.recipe import Instances, Queue, Target
from engine_build.reference import ReferenceKind
from engine_build.texts import DEFAULT_COUNT
from gateway.contract import Pooling


def make_parser() -> argparse.ArgumentParser:
    """The parser; each command sets `run`."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_build", description="Turn a local Hugging Face folder into a Triton model directory."
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, purpose: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        added = subparsers.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        added.set_defaults(run=run)
        return added

    _all(command("all", "do all steps and publish the model directory, unless up to date", commands.build_all))
    _export(command("export", "write the ONNX graph alone, unverified", commands.export))
    _trtexec(command("trtexec", "build a plan from a graph that `export` wrote, unverified", commands.trtexec))
    _verify(command("verify", "compare a graph, a plan or a running Triton with the reference", commands.verify))
    _config(command("config", "print the config.pbtxt that `all` would write", commands.config))
    _manifest(command("manifest", "verify a directory whose plan is there, and write its manifest", commands.manifest))
    _check(command("check", "hold a model directory against its manifest and this machine", commands.check))
    return parser


def _all(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_tools(parser)
    _add_checks(parser)
    add = parser.add_argument
    add("--repo", type=Path, default=Path("triton_repo"), metavar="FOLDER", help="model repository (%(default)s)")
    add("--force", action="store_true", help="do every step again")
    add("--dry-run", action="store_true", help="print trtexec's command line and stop")
    add("--tensorrt-version", metavar="X.Y", help="for --dry-run: the line for this version, with no trtexec here")


def _export(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="FILE", help="ONNX file to write")
    add("--tensorrt-version", metavar="X.Y", help="that will read it: 8.6 is fastest with a graph of its own form")


def _trtexec(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, Target.TENSORRT)
    _add_tools(parser)
    parser.add_argument("--onnx", type=Path, required=True, metavar="FILE", help="graph to build from")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="plan to write, FILE.log beside it")


def _verify(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, Target.TENSORRT)
    _add_tools(parser)
    _add_checks(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--onnx", type=Path, metavar="FILE", help="an FP32 graph")
    what.add_argument("--plan", type=Path, metavar="FILE", help="a plan, on this machine's GPU")
    what.add_argument("--triton", metavar="HOST:PORT", help="the model of this name on a Triton, over gRPC")


def _config(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_tools(parser)
    parser.add_argument("--plan", type=Path, metavar="FILE", help="take tensors and shapes from this plan")


def _manifest(parser: argparse.ArgumentParser) -> None:
    _add_model(parser, Target.TENSORRT)
    _add_tools(parser)
    _add_checks(parser)
    parser.add_argument("--directory", type=Path, required=True, metavar="FOLDER", help="has 1/model.plan")


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="model directory")
    parser.add_argument("--files-only", action="store_true", help="leave the machine out, where there is no GPU")
    _add_tensorrt_python(parser)


def _add_model(parser: argparse.ArgumentParser, target: Target = Target.EMBEDDED) -> None:
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="FOLDER", help="local model folder")
    add("--target", type=Target, choices=list(Target), default=target, help="what runs it (%(default)s)")
    add("--name", help="model name (the folder's)")
    add("--max-batch-size", type=_positive, metavar="ROWS", help="most rows of a call (embedded 32, tensorrt 64)")
    add("--max-sequence-length", type=_positive, metavar="TOKENS", help="longest input (the model's limit)")
    add("--length-buckets", type=_lengths, metavar="TOKENS,...", help="padded lengths (16,32,48,... up to the limit)")
    add("--pooling", choices=("gateway", "engine"), default="gateway", help="where to pool (%(default)s)")
    add("--pooling-mode", type=Pooling, choices=list(Pooling), help="how to pool (as the folder says)")
    add(
        "--prompt",
        type=_prompt,
        action="append",
        default=[],
        metavar="TYPE=TEXT",
        help="text before inputs of a type, such as query='query: '; adds to the folder's, may be repeated",
    )
    _add_engine(parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for --target tensorrt")
    add = group.add_argument
    precisions, outputs = list(Precision), [FloatType.FP32, FloatType.FP16]
    add("--precision", type=Precision, choices=precisions, help="what the graph computes in (fp16)")
    add("--output-type", type=FloatType, choices=outputs, default=FloatType.FP32, help="of the output (%(default)s)")
    add(
        "--profile",
        type=_profile,
        action="append",
        default=[],
        metavar="MIN:OPT:MAX",
        help="shapes such as 1x1:64x128:64x512 (the default for 512 tokens); may be repeated from TensorRT 10 on",
    )
    add("--workspace", type=_positive, default=DEFAULT_WORKSPACE_MIB, metavar="MIB", help="for kernels (%(default)s)")
    add("--builder-level", type=int, choices=range(6), help="TensorRT's effort (its own default)")
    add("--instances", type=_positive, default=Instances().count, help="copies on each GPU (%(default)s)")
    add("--gpus", type=_numbers, default=(), metavar="N,...", help="GPUs to run on (all that Triton sees)")
    add("--busy-wait-events", action="store_true", help="quicker answers for a CPU core at full load")
    add("--queue-delay-us", type=_positive, default=Queue().max_delay_us, help="of Triton's batcher (%(default)s)")


def _add_tools(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tools")
    add = group.add_argument
    add("--trtexec", metavar="FILE", help="(on PATH, else where NVIDIA's images have it)")
    _add_tensorrt_python(parser)
    add("--build-folder", type=Path, default=Path("build"), metavar="FOLDER", help="keeps the steps (%(default)s)")


def _add_tensorrt_python(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tensorrt-python",
        metavar="FILE",
        default=os.environ.get("TENSORRT_PYTHON"),
        help="a Python with the package tensorrt (TENSORRT_PYTHON, else this one, else on PATH)",
    )


def _add_checks(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--reference",
        type=ReferenceKind,
        choices=list(ReferenceKind),
        default=ReferenceKind.AUTO,
        help="what the graph is compared with; auto is torch where installed, else numpy (%(default)s)",
    )
    add("--texts", type=_positive, default=DEFAULT_COUNT, metavar="N", help="a plan is compared on (%(default)s)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _profile(text: str) -> Profile:
    try:
        return Profile.parse(text)
    except OptionError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def _prompt(text: str) -> tuple[str, str]:
    name, sign, prompt = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not TYPE=TEXT")
    return name, prompt
