"""The command line: results on stdout, one line for a failure, exit codes."""

import logging
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import pytest

from engine_build.cli import main
from engine_build.tools import ToolPaths


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)


def test_all(model_folders: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["all", "--model", str(model_folders["bert"]), "--repo", str(tmp_path / "repo"), "--name", "tiny"]

    assert main(arguments) == 0
    assert (tmp_path / "repo" / "tiny" / "1" / "model.onnx").is_file()
    first = capsys.readouterr()
    assert first.out == ""
    assert "verified against torch" in first.err
    assert main(arguments) == 0
    assert "up to date" in capsys.readouterr().err


def test_config_prints(model_folders: Mapping[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = str(model_folders["bert"])
    options = ["--target", "tensorrt", "--max-batch-size", "16", "--max-sequence-length", "48"]
    options += ["--length-buckets", "24,48", "--pooling-mode", "cls", "--prompt", "query=a=b: ", "--prompt", "passage="]

    assert main(["config", "--model", model, *options]) == 0

    text = capsys.readouterr().out
    assert 'platform: "tensorrt_plan"' in text
    assert "max_batch_size: 16" in text
    assert 'string_value: "24,48"' in text
    assert 'string_value: "cls"' in text
    assert r"{\"document\": \"\", \"passage\": \"\", \"query\": \"a=b: \"}" in text


def test_export_then_verify(
    model_folders: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.onnx"
    model = ["--model", str(model_folders["bert"])]

    assert main(["export", *model, "--output", str(file)]) == 0
    assert main(["verify", *model, "--onnx", str(file), "--reference", "numpy"]) == 0
    assert "verified against numpy" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]

    graph = onnx.load(file)
    graph.graph.node[-2].op_type = "InstanceNormalization"
    onnx.save(graph, file)
    assert main(["verify", *model, "--onnx", str(file)]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["all", "--model", "no/where"], "ERROR no such folder: no/where", id="folder"),
        pytest.param(["export", "--model", "MODEL", "--output", "no/dir/x.onnx"], "ERROR no such folder", id="output"),
        pytest.param(["all", "--model", "MODEL", "--name", "a/b"], "ERROR 'a/b' is no model name", id="name"),
        pytest.param(["verify", "--model", "MODEL", "--onnx", "no.onnx"], "ERROR ONNX Runtime cannot load", id="onnx"),
    ],
)
def test_failure_is_one_line(
    arguments: list[str], message: str, model_folders: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(model_folders["bert"]) if argument == "MODEL" else argument for argument in arguments]

    assert main(arguments) == 1

    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(message)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["all"],
        ["build-something"],
        ["all", "--model", "x", "--max-batch-size", "0"],
        ["all", "--model", "x", "--max-batch-size", "many"],
        ["all", "--model", "x", "--length-buckets", "16,,32"],
        ["all", "--model", "x", "--target", "cuda"],
        ["all", "--model", "x", "--prompt", "query"],
        ["all", "--model", "x", "--pooling-mode", "weightedmean"],
        ["all", "--model", "x", "--pooling", "nowhere"],
        ["all", "--model", "x", "--profile", "1x1"],
        ["all", "--model", "x", "--precision", "int8"],
        ["all", "--model", "x", "--output-type", "bf16"],
        ["all", "--model", "x", "--gpus", "first"],
        ["verify", "--model", "x"],
        ["verify", "--model", "x", "--plan", "p", "--triton", "t:1"],
        ["check"],
    ],
)
def test_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)

    assert exit_.value.code == 2
    assert "usage: python -m engine_build" in capsys.readouterr().err


ANY_FOLDER = "FOLDER"
DRY = ["all", "--model", ANY_FOLDER, "--target", "tensorrt", "--dry-run"]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("8.6", ["--fp16", "--inputIOFormats=int32:chw,int32:chw", "--memPoolSize=workspace:4096"]),
        ("10.13.2", ["--stronglyTyped", "--timingCacheFile=timing.cache"]),
        ("11.1", ["--maxShapes=input_ids:64x64,attention_mask:64x64"]),
    ],
)
def test_dry_run_prints_the_line(
    version: str, words: list[str], model_folders: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(model_folders["bert"]) if one == ANY_FOLDER else one for one in DRY]

    assert main([*arguments, "--tensorrt-version", version, "--workspace", "4096"]) == 0

    line = capsys.readouterr().out
    assert line.startswith("cd build/bert && trtexec --onnx=model.onnx --saveEngine=")
    assert set(words) <= set(line.split())


def test_dry_run_is_the_line_that_runs(
    model_folders: Mapping[str, Path],
    stand_in: ToolPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STAND_IN_COUNTER", str(tmp_path / "calls"))
    arguments = [str(model_folders["bert"]) if one == ANY_FOLDER else one for one in DRY]
    arguments += ["--trtexec", str(stand_in.trtexec), "--precision", "mixed"]
    assert main(arguments) == 0
    shown = shlex.split(capsys.readouterr().out)
    assert not (tmp_path / "calls").exists()

    arguments.remove("--dry-run")
    arguments += ["--tensorrt-python", str(stand_in.python), "--texts", "20"]
    arguments += ["--repo", str(tmp_path / "repo"), "--build-folder", str(tmp_path / "build")]
    assert main(arguments) == 0
    assert shown[4:] == (tmp_path / "calls").read_text().splitlines()[0].split()


def test_each_step_alone(
    model_folders: Mapping[str, Path], stand_in: ToolPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(model_folders["bert"]), "--target", "tensorrt", "--pooling", "engine"]
    tools = ["--tensorrt-python", str(stand_in.python), "--build-folder", str(tmp_path / "build")]
    directory = tmp_path / "made by hand"
    (directory / "1").mkdir(parents=True)
    plan = directory / "1" / "model.plan"

    assert main(["export", *model, "--tensorrt-version", "8.6", "--output", str(tmp_path / "graph.onnx")]) == 0
    assert any(node.op_type == "ReduceMax" for node in onnx.load(tmp_path / "graph.onnx").graph.node)
    trtexec = ["trtexec", *model, *tools, "--trtexec", str(stand_in.trtexec)]
    assert main([*trtexec, "--onnx", str(tmp_path / "graph.onnx"), "--output", str(plan)]) == 0
    assert [path.name for path in plan.parent.iterdir()] == ["model.plan.log", "model.plan"] or {
        path.name for path in plan.parent.iterdir()
    } == {"model.plan", "model.plan.log"}
    assert main(["verify", *model, *tools, "--plan", str(plan), "--texts", "20"]) == 0
    assert "model.plan: " in capsys.readouterr().err
    assert main(["config", *model, *tools, "--plan", str(plan)]) == 0
    shown = capsys.readouterr().out
    assert main(["manifest", *model, *tools, "--directory", str(directory), "--texts", "20"]) == 0
    assert (directory / "config.pbtxt").read_text() == shown
    assert main(["check", str(directory), "--tensorrt-python", str(stand_in.python)]) == 0
    assert main(["check", str(directory), "--files-only"]) == 0
    plan.write_bytes(b"")
    assert main(["check", str(directory), "--files-only"]) == 1
    assert "1/model.plan is empty; rebuild with" in capsys.readouterr().err


def test_trtexec_alone_keeps_the_log_of_a_failure(
    model_folders: Mapping[str, Path], stand_in: ToolPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "fails")
    (tmp_path / "graph.onnx").write_bytes(b"any")
    arguments = ["trtexec", "--model", str(model_folders["bert"]), "--trtexec", str(stand_in.trtexec)]

    assert main([*arguments, "--onnx", str(tmp_path / "graph.onnx"), "--output", str(tmp_path / "x.plan")]) == 1

    assert "Could not find any implementation" in (tmp_path / "x.plan.log").read_text()
    assert not (tmp_path / "x.plan").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all", "--dry-run"], "it is for --target tensorrt"),
        (["all", "--precision", "fp16"], "--precision fp16 is for --target tensorrt"),
        (["trtexec", "--target", "embedded", "--onnx", "x", "--output", "y"], "trtexec builds for --target tensorrt"),
        (["manifest", "--directory", "no/where"], "no such file: no/where/1/model.plan"),
        (["verify", "--triton", "127.0.0.1:1", "--texts", "5"], "bert on Triton at 127.0.0.1:1"),
        (["all", "--target", "tensorrt", "--trtexec", "/no/trtexec"], "no /no/trtexec: it comes with TensorRT"),
    ],
)
def test_refused(
    arguments: list[str],
    message: str,
    model_folders: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main([arguments[0], "--model", str(model_folders["bert"]), *arguments[1:]]) == 1

    assert message in capsys.readouterr().err.splitlines()[-1]
