"""The command line: `python -m engine_build export | config | verify | all`. Messages go to stderr, results to stdout.

Exit code 0 is success, 1 a failure told in one line, 2 a wrong command line.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_build.build import Place, build
from engine_build.errors import EngineBuildError, OptionError
from engine_build.model_folder import read_model_folder
from engine_build.recipe import Options, Target, plan
from engine_build.reference import ReferenceKind
from gateway.contract import Pooling

logger = logging.getLogger("engine_build")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s", force=True)
    try:
        options.run(options)
    except (EngineBuildError, OSError) as exc:
        logger.error("%s", " ".join(str(exc).split()))
        return 1
    except KeyboardInterrupt:
        logger.error("interrupted; nothing was published")
        return 130
    return 0


def _export(options: argparse.Namespace) -> None:
    from engine_build.export import export_onnx  # noqa: PLC0415 - onnx is slow to import and seldom needed

    if not options.output.parent.is_dir():
        raise OptionError(f"no such folder: {options.output.parent}")
    folder = read_model_folder(options.model)
    with tempfile.TemporaryDirectory(dir=options.output.parent, prefix=".") as aside:
        path = Path(aside) / options.output.name
        export_onnx(folder, path)
        path.rename(options.output)


def _config(options: argparse.Namespace) -> None:
    from engine_build.model_config import config_text  # noqa: PLC0415

    sys.stdout.write(config_text(plan(read_model_folder(options.model), _options(options))))


def _verify(options: argparse.Namespace) -> None:
    from engine_build.tokenizer import write_tokenizer  # noqa: PLC0415
    from engine_build.verify import verify  # noqa: PLC0415

    folder = read_model_folder(options.model)
    with tempfile.TemporaryDirectory() as aside:
        tokenizer = write_tokenizer(folder, Path(aside) / "tokenizer.json")
    verify(folder, options.onnx, tokenizer, options.reference)


def _all(options: argparse.Namespace) -> None:
    place = Place(options.repo, options.build_folder)
    build(options.model, _options(options), place, options.reference, force=options.force)


def _options(options: argparse.Namespace) -> Options:
    return Options(
        target=options.target,
        name=options.name,
        max_batch_size=options.max_batch_size,
        max_sequence_length=options.max_sequence_length,
        length_buckets=options.length_buckets,
        pooling=options.pooling_mode,
        prompts=dict(options.prompt),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine_build", description="Turn a local Hugging Face folder into a Triton model directory."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    export = _command(commands, "export", "write the ONNX graph alone, unverified", _export)
    export.add_argument("--output", type=Path, required=True, metavar="FILE", help="ONNX file to write")
    config = _command(commands, "config", "print the config.pbtxt that `all` would write", _config)
    _add_options(config)
    verify = _command(commands, "verify", "compare an ONNX file with the reference", _verify)
    verify.add_argument("--onnx", type=Path, required=True, metavar="FILE", help="ONNX file to compare")
    _add_reference(verify)
    everything = _command(commands, "all", "export, configure, verify, then publish, unless up to date", _all)
    _add_options(everything)
    _add_reference(everything)
    everything.add_argument("--repo", type=Path, default=Path("triton_repo"), help="model repository (%(default)s)")
    everything.add_argument(
        "--build-folder", type=Path, default=Path("build"), help="for tensorrt: receives all but the plan (%(default)s)"
    )
    everything.add_argument("--force", action="store_true", help="build even when up to date")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    purpose: str,
    run: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
    command.set_defaults(run=run)
    command.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="local model folder")
    return command


def _add_reference(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--reference",
        type=ReferenceKind,
        choices=list(ReferenceKind),
        default=ReferenceKind.AUTO,
        help="what to compare with; auto is torch where installed, else numpy (%(default)s)",
    )


def _add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--target", type=Target, choices=list(Target), default=Target.EMBEDDED, help="what runs it (%(default)s)")
    add("--name", help="model name (the folder's)")
    add("--max-batch-size", type=_positive, metavar="ROWS", help="most rows of a call (embedded 32, tensorrt 64)")
    add("--max-sequence-length", type=_positive, metavar="TOKENS", help="longest input (the model's limit)")
    add("--length-buckets", type=_lengths, metavar="TOKENS,...", help="padded lengths (16,32,48,... up to the limit)")
    add("--pooling-mode", type=Pooling, choices=list(Pooling), help="pooling (the folder's)")
    add(
        "--prompt",
        type=_prompt,
        action="append",
        default=[],
        metavar="TYPE=TEXT",
        help="text before inputs of a type, such as query='query: '; adds to the folder's, may be repeated",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _prompt(text: str) -> tuple[str, str]:
    name, sign, prompt = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not TYPE=TEXT")
    return name, prompt
