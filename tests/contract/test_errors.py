"""Every status of the contract, from a real process: one shape, small, without the caller's text."""

import time
from typing import Any

import grpc
import numpy as np
import pytest

from tests.contract.caller import Caller, read_error
from tests.stub_gateway import DOWN, FULL_QUEUE, StubGateway, answer
from tests.stub_triton import Arrays

SECRET = "the caller's own text " * 200


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", "/v1/embeddings", b"", 400, None),
        ("POST", "/v1/embeddings", b"{", 400, None),
        ("POST", "/v1/embeddings", b"[]", 400, None),
        ("POST", "/v1/embeddings", b'{"input": "a"}', 400, None),
        ("POST", "/v1/embeddings", b'{"model": "all-MiniLM-L6-v2"}', 400, None),
        ("POST", "/embeddings/", b'{"model": "other", "input": "a"}', 404, "model_not_found"),
        ("GET", "/v1/embeddings", b"", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/embeddings", b"", 405, "method_not_allowed"),
        ("PATCH", "/v1/models", b"", 405, "method_not_allowed"),
        ("GET", "/v1/models/no/such", b"", 404, "model_not_found"),
        ("GET", "/no/such/path", b"", 404, "not_found"),
        ("POST", "/v1/chat/completions", b"{}", 404, "not_found"),
    ],
)
def test_what_the_caller_did_wrong(
    caller: Caller, method: str, path: str, content: bytes, status: int, code: str | None
) -> None:
    response = caller.client.request(method, path, content=content)
    assert response.status_code == status
    error = read_error(response)
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert "location" not in response.headers


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_another_content_type(caller: Caller, content_type: str) -> None:
    response = caller.client.post("/v1/embeddings", content=b"{}", headers={"content-type": content_type})
    assert response.status_code == 415
    assert read_error(response)["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [SECRET, None]},
        {"input": {SECRET: 1}},
        {"input": SECRET},
        {"input": "a", "model": SECRET},
        {"input": "a", "encoding_format": SECRET},
        {"input": "a", "dimensions": SECRET},
        {"input": "a", "truncate": SECRET},
        {"input": "a", "input_type": SECRET},
    ],
)
def test_the_callers_text_is_not_repeated(caller: Caller, fields: dict[str, Any]) -> None:
    response = caller.post({"model": "all-MiniLM-L6-v2", **fields})
    assert response.status_code in (400, 404)
    assert "own text" not in str(read_error(response))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models", "/v1/models/x", "/embeddings/"])
@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", "Bearer", "Basic dGhlLXJpZ2h0LWtleQ==", "the-right-key"]
)
def test_a_wrong_key(keyed: Caller, path: str, authorization: str | None) -> None:
    method = "POST" if path.strip("/").endswith("embeddings") else "GET"
    headers = {} if authorization is None else {"authorization": authorization}
    with Caller(keyed.url, headers) as stranger:
        response = stranger.client.request(method, path, content=b"{" if method == "POST" else None)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert read_error(response)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"])
def test_open_routes(keyed: Caller, path: str) -> None:
    with Caller(keyed.url) as stranger:
        assert stranger.client.get(path).status_code == 200


def test_a_page_of_the_right_origin_may_call(keyed: Caller) -> None:
    asked = {
        "origin": "https://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    with Caller(keyed.url) as stranger:
        response = stranger.client.options("/v1/embeddings", headers=asked)
        assert response.headers["access-control-allow-origin"] == "https://page.example"
        assert "authorization" in response.headers["access-control-allow-headers"].lower()
        other = stranger.client.options("/v1/embeddings", headers=asked | {"origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("refusal", "status", "code", "retry"),
    [
        pytest.param(FULL_QUEUE, 429, "overloaded", True, id="full-queue"),
        pytest.param(DOWN, 503, "engine_unavailable", True, id="down"),
        pytest.param((grpc.StatusCode.INVALID_ARGUMENT, SECRET), 500, "engine_rejected", False, id="rejected"),
    ],
)
def test_what_triton_refuses(
    broken: StubGateway, stub_caller: Caller, refusal: tuple[grpc.StatusCode, str], status: int, code: str, retry: bool
) -> None:
    broken.triton.status = refusal
    response = stub_caller.ask("a")
    assert response.status_code == status
    error = read_error(response)
    assert error["code"] == code
    assert error["type"] == ("rate_limit_error" if status == 429 else "server_error")
    assert "own text" not in error["message"]
    assert ("retry-after" in response.headers) == retry
    if retry:
        assert int(response.headers["retry-after"]) >= 1


def spoil(value: float, row: int) -> Any:
    def answer_badly(inputs: Arrays) -> Arrays:
        hidden = answer(inputs)["last_hidden_state"].copy()
        if len(hidden) > row:
            hidden[row, 1] = value
        return {"last_hidden_state": hidden}

    return answer_badly


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_nan_and_infinity_are_never_values(
    broken: StubGateway, stub_caller: Caller, value: float, encoding_format: str
) -> None:
    broken.triton.answer = spoil(value, row=1)
    response = stub_caller.ask(["a", "b", "c"], encoding_format=encoding_format)
    assert response.status_code == 500
    error = read_error(response)
    assert error["code"] == "engine_bad_output"
    assert "input 1" in error["message"]


def test_the_deadline_is_over_all_parts(broken: StubGateway, stub_caller: Caller) -> None:
    broken.triton.delay_s = 0.8
    started = time.monotonic()
    response = stub_caller.ask(["a"] * 300)
    assert response.status_code == 504
    assert read_error(response)["code"] == "engine_timeout"
    assert 1.5 < time.monotonic() - started < 10


def test_one_failing_part_fails_the_request(broken: StubGateway, stub_caller: Caller) -> None:
    broken.triton.refusals = 1
    broken.triton.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "no")
    response = stub_caller.ask(["a"] * 100)
    assert response.status_code == 500
    assert "data" not in response.json()
    assert read_error(response)["code"] == "engine_rejected"
