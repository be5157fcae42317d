"""OpenAI's client for JavaScript, run by Node."""

import json
import subprocess
from typing import Any

import numpy as np
import pytest

from gateway.types import Float32Array
from tests.clients.snippets import JAVASCRIPT
from tests.contract.caller import KEY, Caller
from tests.integration.triton_figures import DEMO_MODEL
from tests.stub_gateway import FULL_QUEUE, StubGateway


def run(script: str, *arguments: str) -> Any:
    command = ["node", script, *arguments]
    ended = subprocess.run(command, cwd=JAVASCRIPT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def result(keyed: Caller) -> dict[str, Any]:
    answer: dict[str, Any] = run("check.mjs", f"{keyed.url}/v1", KEY, "wrong", DEMO_MODEL)
    return answer


@pytest.fixture(scope="module")
def expected(keyed: Caller) -> Float32Array:
    return keyed.embed(["tree", "a river and a house"])


def test_default_and_float_are_the_same_vectors(result: dict[str, Any], expected: Float32Array) -> None:
    np.testing.assert_array_equal(np.array(result["default"], np.float32), expected)
    np.testing.assert_array_equal(np.array(result["float"], np.float32), expected)
    assert result["dimensions"] == [8, 8]
    assert result["tokens"] == 10


def test_models(result: dict[str, Any]) -> None:
    assert result["models"] == [DEMO_MODEL]
    assert result["retrieved"] == DEMO_MODEL


@pytest.mark.parametrize(
    ("case", "name", "status", "code", "param", "message"),
    [
        ("wrongKey", "AuthenticationError", 401, "invalid_api_key", None, "The API key is not right."),
        ("empty", "BadRequestError", 400, "empty_input", "input[1]", "Item 1 of `input` is empty."),
        ("unknown", "NotFoundError", 404, "model_not_found", "model", f"Served here: {DEMO_MODEL}."),
    ],
)
def test_errors(
    result: dict[str, Any], case: str, name: str, status: int, code: str, param: str | None, message: str
) -> None:
    error = result[case]
    assert (error["name"], error["status"], error["code"], error["param"]) == (name, status, code, param)
    assert message in error["message"]


def test_it_tries_again_after_the_seconds_that_we_say(broken: StubGateway) -> None:
    broken.triton.refusals, broken.triton.refusal = 2, FULL_QUEUE
    answer = run("retry.mjs", broken.base_url, DEMO_MODEL)
    assert answer["length"] == 384
    assert answer["seconds"] >= 1.99
    assert broken.triton.refusals == 0
