"""The OpenAPI document against the behaviour: schemathesis, generating requests from it, finds nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.caller import KEY, Caller, read_error, read_vectors
from tests.gateway_process import ROOT

EXAMPLES = 300
"""Requests generated for each route and phase."""

UNCHECKED = "positive_data_acceptance,missing_required_header"
"""All its checks run but these: which ids and lengths the model takes no schema can say, and the key that the command
line gives is sent where schemathesis thinks it missing. `ignored_auth` and test_errors.py try without."""


def test_schemathesis_finds_nothing(keyed: Caller, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{keyed.url}/openapi.json", "--no-color",
        "--header", f"Authorization:Bearer {KEY}", "--exclude-checks", UNCHECKED,
        "--max-examples", str(EXAMPLES), "--generation-deterministic",
    ]  # fmt: skip
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "tests.contract.schemathesis_hooks", "PYTHONPATH": str(ROOT)}
    embedded = keyed.metric("gateway_inputs_total")
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    with capfd.disabled():
        print(f"\n{run.stdout[run.stdout.find('== SUMMARY ==') :]}")
    assert run.returncode == 0, run.stdout + run.stderr
    generated = re.search(r"(\d+) generated, (\d+) passed", run.stdout)
    assert generated is not None, run.stdout
    assert int(generated[1]) > 500
    assert keyed.metric("gateway_inputs_total") > embedded + 100, "hardly anything reached the model"
    assert keyed.metric("gateway_requests_in_flight") <= 1


@pytest.fixture(scope="module")
def examples(caller: Caller) -> dict[str, dict[str, object]]:
    document = caller.client.get("/openapi.json").json()
    content = document["paths"]["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]
    return {name: example["value"] for name, example in content["examples"].items()}


def test_the_documents_examples_work(caller: Caller, examples: dict[str, dict[str, object]]) -> None:
    for fields in examples.values():
        response = caller.post(fields)
        assert response.status_code == 200
        read_vectors(response)


def test_trailing_slash_and_missing_v1(caller: Caller) -> None:
    for path in ("/v1/embeddings", "/v1/embeddings/", "/embeddings", "/embeddings/"):
        response = caller.client.post(path, json={"model": "all-MiniLM-L6-v2", "input": "tree"})
        assert response.status_code == 200
    for path in ("/v1/models", "/v1/models/", "/models", "/models/"):
        assert caller.client.get(path).json()["data"][0]["id"] == "all-MiniLM-L6-v2"


def test_request_ids(caller: Caller) -> None:
    for path in ("/v1/models", "/no/such/path", "/v1/embeddings"):
        assert caller.client.get(path, headers={"x-request-id": "request-7"}).headers["x-request-id"] == "request-7"
    assert len(caller.client.get("/v1/models").headers["x-request-id"]) == 32


def test_an_upgrade_is_an_ordinary_request(caller: Caller) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    response = caller.client.get("/v1/embeddings", headers=headers)
    assert response.status_code == 405
    assert read_error(response)["code"] == "method_not_allowed"
