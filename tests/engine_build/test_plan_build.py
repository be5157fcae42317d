"""`all --target tensorrt` from end to end on stand-ins for trtexec and TensorRT: how processes are dealt with.

The stand-ins run the graph with ONNX Runtime, so every other step is the real one.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as triton

from engine_build.build import Checks, Place, build
from engine_build.check import check_directory
from engine_build.engine_recipe import Profile
from engine_build.errors import EngineBuildError, EngineError, ForeignEngineError, VerificationError
from engine_build.plan import read_machine
from engine_build.precision import FloatType, Precision
from engine_build.recipe import Instances, Options, Target
from engine_build.tools import ToolPaths, find_tools

FILES = [
    "1/model.plan",
    "config.pbtxt",
    "manifest.json",
    "tokenizer.json",
    "trtexec.log",
    "warmup/attention_mask",
    "warmup/input_ids",
]
Run = Any


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place" / "triton_repo", tmp_path / "place" / "build")


@pytest.fixture
def run(model_folders: Mapping[str, Path], place: Place, stand_in: ToolPaths) -> Run:
    def call(kind: str = "bert", force: bool = False, texts: int = 40, **options: Any) -> Path:
        chosen = Options(**({"target": Target.TENSORRT} | options))
        return build(model_folders[kind], chosen, place, Checks(texts=texts), paths=stand_in, force=force)

    return call


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with a line for every build or run of trtexec."""
    counter = tmp_path / "calls"
    counter.touch()
    monkeypatch.setenv("STAND_IN_COUNTER", str(counter))
    return counter


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def manifest(directory: Path) -> Any:
    return json.loads((directory / "manifest.json").read_text())


def config(directory: Path) -> Any:
    return text_format.Parse((directory / "config.pbtxt").read_text(), triton.ModelConfig())


def test_all(run: Run, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    directory = run()

    assert directory == place.repository / "bert"
    assert files(directory) == FILES
    assert list(place.repository.iterdir()) == [directory]
    content = manifest(directory)
    engine = content["engine"]
    assert {key: engine[key] for key in ("tensorrt", "gpu", "compute_capability", "trtexec")} == {
        "tensorrt": "8.6.1", "gpu": "Stand-in", "compute_capability": "9.0", "trtexec": "8.6.1",
    }  # fmt: skip
    assert "--fp16" in engine["arguments"]
    assert len(engine["onnx_sha256"]) == len(engine["plan_sha256"]) == 64
    assert content["recipe"]["graph"] == {
        "precision": "fp16", "output": "fp32", "pooling": None, "row_gelu": True,
    }  # fmt: skip
    assert content["verified"]["graph"]["max_difference"] < 5e-5
    verified = content["verified"]["plan"]
    assert verified["least_cosine"] > 0.999
    assert verified["not_finite"] == 0
    assert {"1x1", "7x3", "1x20", "1x64"} <= set(verified["by_shape"])
    assert np.array(content["self_check"]["embeddings"]).shape == (3, 32)
    assert set(content["files"]) == set(FILES) - {"manifest.json"}
    assert "the plan: " in caplog.text
    assert "worst texts" in caplog.text
    assert "running layernorm after self-attention in FP16 may cause overflow" in caplog.text
    assert "&&&& PASSED" in (directory / "trtexec.log").read_text()


def test_no_path_of_this_machine_gets_out(run: Run, tmp_path: Path) -> None:
    directory = run()

    for name in ("manifest.json", "config.pbtxt"):
        assert str(tmp_path.parent.parent) not in (directory / name).read_text()


def test_config_is_the_plans(run: Run) -> None:
    options = {"profiles": (Profile.parse("1x1:8x32:24x64"),), "output": FloatType.FP16, "pool_in_engine": True}
    directory = run(instances=Instances(3, (0, 2), True), **options)

    written = config(directory)
    assert written.platform == "tensorrt_plan"
    assert written.max_batch_size == 24
    assert [(one.name, one.data_type, list(one.dims)) for one in written.input] == [
        ("input_ids", triton.TYPE_INT32, [-1]),
        ("attention_mask", triton.TYPE_INT32, [-1]),
    ]
    assert [(one.name, one.data_type, list(one.dims)) for one in written.output] == [
        ("sentence_embedding", triton.TYPE_FP16, [32])
    ]
    (group,) = written.instance_group
    assert (group.count, list(group.gpus), list(group.profile)) == (3, [0, 2], [])
    assert written.optimization.cuda.busy_wait_events
    assert not written.optimization.cuda.graphs
    assert {(one.batch_size, one.inputs["input_ids"].dims[0]) for one in written.model_warmup} == {
        (rows, length) for rows in (1, 24) for length in (16, 32, 48, 64)
    }
    ids = np.fromfile(directory / "warmup" / "input_ids", np.int32)
    assert ids.shape == (64,)
    assert ids.min() > 0
    assert ids.max() < 320
    assert set(np.fromfile(directory / "warmup" / "attention_mask", np.int32)) == {1}


def test_second_run_builds_nothing(run: Run, calls: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    directory = run()
    assert len(calls.read_text().splitlines()) == 2

    assert run() == directory

    assert len(calls.read_text().splitlines()) == 2
    assert caplog.messages[-1] == f"{directory} is up to date"


def test_a_stopped_build_goes_on(
    run: Run, calls: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("STAND_IN_FAULT", "fails")
    with pytest.raises(EngineError):
        run()
    monkeypatch.delenv("STAND_IN_FAULT")
    caplog.clear()

    run()

    assert {"reference: as before", "vectors: as before", "graph: as before", "plan ..."} <= set(caplog.messages)


def test_lost_directory_is_put_back_without_building(run: Run, calls: Path) -> None:
    first = run()
    shutil.rmtree(first)

    assert files(run()) == FILES
    assert len(calls.read_text().splitlines()) == 2


@pytest.mark.parametrize("change", ["force", "option", "tensorrt", "gpu", "plan"])
def test_what_makes_a_plan_stale(
    change: str, run: Run, calls: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run()
    if change == "tensorrt":
        monkeypatch.setenv("STAND_IN_VERSION", "8602")
        monkeypatch.setenv("STAND_IN_PACKAGE_VERSION", "8.6.2")
    if change == "gpu":
        monkeypatch.setenv("STAND_IN_GPU", "Another")
    if change == "plan":
        for plan in (place.build_folder / "bert" / "model.plan", first / "1" / "model.plan"):
            plan.write_bytes(b"")

    run(force=change == "force", workspace_mib=2048 if change == "option" else 8192)

    assert len(calls.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fails", r"building the plan failed: trtexec ended with 1; more --workspace"),
        ("disk full", r"trtexec ended with 1; free some disk"),
        ("killed", r"trtexec was ended by SIGKILL, as the kernel does where memory is short; see .*trtexec.log"),
        ("dies without a word", r"trtexec ended with 0, yet without its line `&&&& PASSED`"),
        ("no plan", r"trtexec ended with 0 and wrote no plan"),
        ("does not load", r"running the plan failed: trtexec ended with 1"),
    ],
)
def test_trtexec_that_fails(
    fault: str,
    message: str,
    run: Run,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)

    with pytest.raises(EngineError, match=message):
        run()

    assert not place.repository.exists()
    left = {path.name for path in (place.build_folder / "bert").iterdir()}
    assert not left & {"model.plan", "unfinished.plan", "ids.raw", "mask.raw", "plan.step.json"}
    assert "trtexec's last lines:\n&&&& RUNNING" in caplog.text


def test_crash_after_passed_is_forgiven_when_the_plan_runs(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "crashes after PASSED")

    assert files(run()) == FILES
    assert "ended with -11 after it had passed" in caplog.text


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("wrong after the first row", r"the plan is not good enough: least cosine -?0\.\d+, 0 rows not finite, 0.999"),
        ("not finite", r"the plan is not good enough: least cosine nan, \d+ rows not finite.*use --precision mixed"),
    ],
)
def test_a_wrong_plan_is_not_published(
    fault: str,
    message: str,
    run: Run,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)

    with pytest.raises(VerificationError, match=message):
        run()

    assert not place.repository.exists()
    assert "NOT good" in caplog.text


def test_values_beyond_half_are_found_before_tensorrt_is_asked(
    run: Run, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_build.verify_plan.overflowing_layers", lambda *_: ["layer.1/sum (70000)"])

    with pytest.raises(
        VerificationError, match=r"^beyond FP16's 65504 are layer.1/sum \(70000\): use --precision mixed"
    ):
        run()

    assert calls.read_text() == ""


def test_what_was_published_stays_when_the_next_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = manifest(run())
    monkeypatch.setenv("STAND_IN_FAULT", "wrong after the first row")

    with pytest.raises(VerificationError):
        run(force=True)

    monkeypatch.delenv("STAND_IN_FAULT")
    assert manifest(run()) == before


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"STAND_IN_PACKAGE_VERSION": "10.13.2.6"}, r"trtexec is of TensorRT 8.6.1, the package of .* of 10.13.2.6"),
        ({"STAND_IN_FAULT": "no GPU"}, "no usable GPU"),
        ({"STAND_IN_FAULT": "no package"}, "has the package tensorrt, which runs the plan"),
        ({"STAND_IN_VERSION": "8503"}, "TensorRT 8.5.3 is not supported"),
        ({"STAND_IN_FAULT": "dies while running"}, "the process that runs the plan"),
    ],
)
def test_tools_that_do_not_fit(
    variables: dict[str, str], message: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(EngineError, match=message):
        run()


def test_missing_tools(stand_in: ToolPaths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="no trtexec: it comes with TensorRT; build in the builder image"):
        find_tools(ToolPaths())
    with pytest.raises(EngineError, match="no /no/where"):
        find_tools(ToolPaths("/no/where"))
    with pytest.raises(EngineError, match="no Python here has the package tensorrt"):
        find_tools(ToolPaths(stand_in.trtexec))
    (tmp_path / "trtexec").write_text("no program")
    (tmp_path / "trtexec").chmod(0o755)
    with pytest.raises(EngineError, match="cannot run"):
        find_tools(ToolPaths())


@pytest.mark.parametrize(
    "options",
    [
        {"precision": Precision.FP32},
        {"precision": Precision.MIXED, "output": FloatType.FP16},
        {"precision": Precision.FP16, "pool_in_engine": True},
        {"kind": "mpnet", "precision": Precision.FP16},
    ],
    ids=str,
)
def test_forms(options: dict[str, Any], run: Run) -> None:
    assert manifest(run(**options))["verified"]["plan"]["least_cosine"] > 0.999


def test_check(
    run: Run, stand_in: ToolPaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    directory = run()
    machine = read_machine(str(stand_in.python))

    check_directory(directory, machine)
    assert "is as it was built for TensorRT 8.6.1 on Stand-in (compute capability 9.0)" in caplog.text

    monkeypatch.setenv("STAND_IN_GPU", "Small")
    monkeypatch.setenv("STAND_IN_PACKAGE_VERSION", "10.1.0")
    built = r"built for TensorRT 8.6.1 on Stand-in .*, found TensorRT 10.1.0 on Small .*"
    with pytest.raises(ForeignEngineError, match=rf"{built}; rebuild with `python -m engine_build all --model bert"):
        check_directory(directory, read_machine(str(stand_in.python)))


@pytest.mark.parametrize(
    ("content", "message"), [(None, "is missing"), (b"", "is empty"), (b"half", "is not the file that was built")]
)
def test_check_of_damaged_files(content: bytes | None, message: str, run: Run) -> None:
    directory = run()
    plan = directory / "1" / "model.plan"
    plan.unlink() if content is None else plan.write_bytes(content)

    with pytest.raises(ForeignEngineError, match=f"1/model.plan {message}; rebuild with"):
        check_directory(directory, None)


def test_the_wrong_folder_has_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(EngineBuildError, match=r"missing file: .*manifest.json"):
        check_directory(tmp_path, None)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a file system of its own")
def test_full_disk_leaves_nothing(run: Run, place: Place) -> None:
    """A real file system without room for the plan."""
    place.build_folder.mkdir(parents=True)
    if os.system(f"mount -t tmpfs -o size=200k tmpfs '{place.build_folder}' 2> /dev/null"):
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises((OSError, EngineBuildError)):
            run()
        assert not place.repository.exists()
        assert not list(place.build_folder.rglob("*.plan"))
    finally:
        os.system(f"umount '{place.build_folder}'")
