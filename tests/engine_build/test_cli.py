"""The command line: results on stdout, one line for a failure, exit codes."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import pytest

from engine_build.cli import main


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
    ],
)
def test_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)

    assert exit_.value.code == 2
    assert "usage: python -m engine_build" in capsys.readouterr().err
