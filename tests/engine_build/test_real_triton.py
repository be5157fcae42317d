"""What engine_build writes, on the real Triton: warm-up, queue, parameters; and a repository that is being written to.

There is no TensorRT here: the Python backend runs the graph under the configuration of the plan.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_build.assembly import TEMPLATE
from engine_build.cli import main
from engine_build.errors import EngineError
from engine_build.export import export_onnx
from engine_build.model_config import config_text
from engine_build.model_folder import ModelFolder
from engine_build.precision import GraphForm
from engine_build.recipe import Options, Target, plan
from engine_build.repository import STAGING
from engine_build.tokenizer import open_tokenizer
from engine_build.triton_model import open_triton_model
from engine_build.warm_up import write_warm_up
from gateway.embedded import EmbeddedTriton
from gateway.engine_match import explained
from gateway.errors import StartupError
from gateway.model_directory import find_models
from tests.engine_build.tiny import change_json

WARMED = Path("warmed")
RECORD = """

class TritonPythonModel(TritonPythonModel):
    def execute(self, requests):
        rows = [read_input(request, "input_ids") for request in requests]
        with open(__file__ + ".log", "a") as file:
            file.write(f"{sum(map(len, rows))}x{rows[0].shape[1]} {rows[0][0][0]}\\n")
        return super().execute(requests)
"""


@pytest.fixture(scope="module")
def repository(model_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model under a TensorRT configuration, with a half-written one inside it."""
    from engine_build.model_folder import read_model_folder  # noqa: PLC0415

    folder = read_model_folder(model_folders["bert"])
    recipe = plan(folder, Options(target=Target.TENSORRT, max_batch_size=8, pool_in_engine=True))
    directory = tmp_path_factory.mktemp("repository") / "bert"
    (directory / "1").mkdir(parents=True)
    export_onnx(folder, directory / "1" / "model.onnx", GraphForm(pooling=recipe.pooling))
    (directory / "1" / "model.py").write_text(TEMPLATE.read_text() + RECORD)
    text = config_text(recipe).replace('platform: "tensorrt_plan"', 'backend: "python"').replace("KIND_GPU", "KIND_CPU")
    (directory / "config.pbtxt").write_text(text)
    tokenizer = open_tokenizer(folder.encoder_path / "tokenizer.json")
    write_warm_up(directory, recipe, tokenizer.encode("fox dog").ids, 8)
    shutil.copytree(directory, directory / STAGING / "bert", ignore=shutil.ignore_patterns(STAGING))
    (directory / STAGING / "bert" / "config.pbtxt").write_text("half a")
    change_json(directory / "manifest.json", {})
    return directory.parent


@pytest.fixture(scope="module")
def url(repository: Path) -> Iterator[str]:
    with EmbeddedTriton(repository, grpc_port=0, http_port=0, metrics_port=0) as triton:
        triton.wait_ready(60)
        yield triton.grpc_url


def test_every_bucket_is_warmed_up_with_real_tokens(url: str, repository: Path) -> None:
    lines = (repository / "bert" / "1" / "model.py.log").read_text().split("\n")

    assert {f"{rows}x{length} 2" for rows in (1, 8) for length in (16, 32, 48, 64)} <= set(lines)


def test_verify_over_grpc(
    url: str, model_folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", "--model", str(model_folders["bert"]), "--max-batch-size", "8", "--triton", url]

    assert main([*arguments, "--build-folder", str(tmp_path), "--texts", "30"]) == 0

    assert f"bert on Triton: {3 * 30} rows, least cosine 1.0000000" in capsys.readouterr().err


def test_batch_beyond_the_configuration(url: str, bert: ModelFolder) -> None:
    import numpy as np  # noqa: PLC0415

    with open_triton_model(url, "bert") as run, pytest.raises(EngineError, match="batch-size must be <= 8"):
        run(np.ones((9, 4), np.int32), np.ones((9, 4), np.int32))


def test_the_gateway_sees_no_half_written_model(repository: Path) -> None:
    assert find_models(repository) == ["bert"]


async def test_the_gateway_tells_of_a_plan_for_another_triton(
    url: str, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = {"tensorrt": "10.1", "triton": "2.0.0", "gpu": "X", "compute_capability": "9.0", "gpu_memory_bytes": 1}
    change_json(repository / "bert" / "manifest.json", {"engine": engine, "source": {"folder": "bert"}})

    async with explained(url, repository / "bert"):
        pass

    assert "built for TensorRT 10.1 on X" in caplog.text
    assert "found Triton 2.51.0 instead of 2.0.0; rebuild with" in caplog.text


async def test_a_triton_that_is_away_is_not_compared(repository: Path) -> None:
    with pytest.raises(StartupError, match=r"^away$"):
        async with explained("127.0.0.1:1", repository / "bert"):
            raise StartupError("away")
