"""What is wrong at the start ends it at once, with one clear line; what is wrong with the vectors keeps it unready."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from tests.gateway_process import ROOT, fail_to_start, free_port, run_gateway
from tests.integration.triton_figures import DEMO_MODEL
from tests.stub_triton import StubTriton, serve_stub

Change = Callable[[Path], None]


@pytest.fixture
def repository(model_repository: Path, tmp_path: Path) -> Path:
    """A copy of the model repository without the weights, to be spoilt."""
    copy = tmp_path / "triton_repo"
    shutil.copytree(model_repository / DEMO_MODEL, copy / DEMO_MODEL, ignore=shutil.ignore_patterns("1"))
    return copy


def assert_one_clear_line(output: str, *parts: str) -> None:
    lines = [line for line in output.splitlines() if "CRITICAL" in line or "ERROR" in line]
    told = [line for line in lines if all(part in line for part in parts)]
    assert len(told) == 1, output
    assert "Traceback" not in output


def remove(name: str) -> Change:
    return lambda repository: (repository / DEMO_MODEL / name).unlink()


def write(name: str, text: str) -> Change:
    def change(repository: Path) -> None:
        (repository / DEMO_MODEL / name).write_text(text)

    return change


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        pytest.param(shutil.rmtree, ["no model repository at", "GATEWAY_MODEL_REPOSITORY"], id="no repository"),
        pytest.param(lambda repository: shutil.rmtree(repository / DEMO_MODEL), ["no model in"], id="no model"),
        pytest.param(remove("tokenizer.json"), ["tokenizer.json is missing"], id="no tokenizer"),
        pytest.param(write("manifest.json", "{"), ["manifest.json is not a manifest"], id="half a manifest"),
        pytest.param(write("manifest.json", "{}"), ["manifest.json is not a manifest"], id="a foreign manifest"),
    ],
)
def test_local_files_are_checked_before_triton_is_waited_for(repository: Path, spoil: Change, parts: list[str]) -> None:
    spoil(repository)
    started = time.monotonic()
    code, output = fail_to_start(model_repository=repository, triton_url=f"127.0.0.1:{free_port()}")
    assert code != 0
    assert time.monotonic() - started < 20  # Triton would be waited for five minutes
    assert_one_clear_line(output, "cannot start", *parts)


def test_a_model_that_is_not_there(repository: Path) -> None:
    code, output = fail_to_start(model_repository=repository, models="other")
    assert code != 0
    assert_one_clear_line(output, "cannot start", "no model directory", "other")


def test_nonsense_in_the_settings_names_the_variable(repository: Path) -> None:
    code, output = fail_to_start(model_repository=repository, request_timeout_s="-1", max_batch_tokens="many")
    assert code == 2
    assert_one_clear_line(output, "GATEWAY_REQUEST_TIMEOUT_S")
    assert_one_clear_line(output, "GATEWAY_MAX_BATCH_TOKENS")


@pytest.mark.parametrize(
    ("name", "value"), [("model_aliases", '{"a": "nope"}'), ("unnormalized_models", "nope"), ("model_aliases", "{bad")]
)
def test_settings_that_name_no_served_model(repository: Path, name: str, value: str) -> None:
    started = time.monotonic()
    code, output = fail_to_start(model_repository=repository, triton_url=f"127.0.0.1:{free_port()}", **{name: value})
    assert code != 0
    assert time.monotonic() - started < 20  # before Triton is waited for
    assert_one_clear_line(output, f"GATEWAY_{name.upper()}")


def test_a_port_for_the_gateway_and_its_triton(repository: Path) -> None:
    code, output = fail_to_start(model_repository=repository, embedded_triton=True, port=9001, embedded_http_port=9001)
    assert code == 2
    assert_one_clear_line(output, "GATEWAY_PORT and GATEWAY_EMBEDDED_HTTP_PORT are both 9001")


def test_a_misspelt_setting_is_told(repository: Path) -> None:
    code, output = fail_to_start(model_repository=repository, models="other", prot="1")
    assert code != 0
    assert "not settings, ignored: GATEWAY_PROT" in output


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--port=9000", 2)])
def test_arguments_start_nothing(argument: str, code: int) -> None:
    command = [sys.executable, "-m", "gateway", argument]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == code
    assert ("GATEWAY_MAX_BATCH_TOKENS=16384" in result.stdout) is (argument == "--help")


def test_triton_is_waited_for_with_the_reason_and_not_for_ever(repository: Path) -> None:
    code, output = fail_to_start(
        model_repository=repository, triton_url=f"127.0.0.1:{free_port()}", startup_timeout_s=2.5
    )
    assert code != 0
    assert "waiting for model" in output
    assert_one_clear_line(output, "cannot start", "not ready on Triton at", "within 2.5 s")


def rename_output(config: dict[str, Any]) -> None:
    config["output"][0]["name"] = "pooler_output"


def flatten_output(config: dict[str, Any]) -> None:
    config["output"][0]["dims"] = [384]


def shrink_vocabulary(config: dict[str, Any]) -> None:
    config["parameters"]["embedding.vocab_size"]["string_value"] = "1000"


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        pytest.param(rename_output, ["outputs are ['pooler_output']"], id="output name"),
        pytest.param(flatten_output, ["has dims [384]"], id="output rank"),
        pytest.param(shrink_vocabulary, ["tokens but the model only 1000"], id="vocabulary"),
    ],
)
async def test_a_model_that_does_not_keep_the_contract(
    repository: Path, spoil: Callable[[dict[str, Any]], None], parts: list[str]
) -> None:
    # A stub: the real Triton refuses these before the gateway sees them.
    text = (repository / DEMO_MODEL / "config.pbtxt").read_text()
    message = text_format.Parse(text, model_config_pb2.ModelConfig())
    config = json_format.MessageToDict(message, preserving_proto_field_name=True)
    spoil(config)
    async with serve_stub(StubTriton(config, lambda inputs: inputs)) as stub:
        code, output = await asyncio.to_thread(fail_to_start, model_repository=repository, triton_url=stub.url)
    assert code != 0
    assert_one_clear_line(output, "cannot start", *parts)


def swap_tokenizer(repository: Path) -> None:
    path = repository / DEMO_MODEL / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    ids = list(vocabulary.values())
    tokenizer["model"]["vocab"] = dict(zip(vocabulary, ids[:999] + ids[:998:-1], strict=True))
    path.write_text(json.dumps(tokenizer))


def foreign_vectors(repository: Path) -> None:
    path = repository / DEMO_MODEL / "manifest.json"
    manifest = json.loads(path.read_text())
    vectors = np.array(manifest["self_check"]["embeddings"])
    manifest["self_check"]["embeddings"] = np.roll(vectors, 1, axis=1).tolist()
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("spoil", [swap_tokenizer, foreign_vectors])
def test_other_vectors_than_the_manifests_keep_the_model_unready(
    repository: Path, triton_url: str, tmp_path: Path, spoil: Change
) -> None:
    spoil(repository)
    with run_gateway(tmp_path / "gateway.log", model_repository=repository, triton_url=triton_url) as gateway:
        assert httpx.get(f"{gateway.url}/health/live").status_code == 200
        ready = httpx.get(f"{gateway.url}/health/ready")
        assert ready.status_code == 503
        assert "vectors differ from its manifest's" in ready.text
        body = {"model": DEMO_MODEL, "input": "x"}
        answer = httpx.post(f"{gateway.url}/v1/embeddings", json=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_unavailable"
        assert f'gateway_model_ready{{model="{DEMO_MODEL}"}} 0.0' in httpx.get(f"{gateway.url}/metrics").text
