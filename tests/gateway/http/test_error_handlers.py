import logging
from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from gateway import errors
from gateway.errors import GatewayError
from gateway.http.error_handlers import CrashHandler, error_response
from gateway.http.middleware import RequestRecord
from gateway.http.schemas import ErrorResponse

if TYPE_CHECKING:
    from tests.gateway.http.conftest import Harness

BODY = {"model": "stub", "input": "a"}
CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GatewayError)]


def make_error(kind: type[GatewayError], param: str | None = None) -> GatewayError:
    if issubclass(kind, errors.Overloaded):
        return kind("What happened.", errors.ExceededLimit.QUEUE_TIME, param=param)
    return kind("What happened.", param=param)


def check_shape(response: httpx.Response) -> dict[str, str | None]:
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < 2000
    ErrorResponse.model_validate_json(response.content, strict=True)
    error: dict[str, str | None] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("kind", "status", "error_type", "code"),
    [
        (errors.InvalidRequest, 400, "invalid_request_error", None),
        (errors.EmptyInput, 400, "invalid_request_error", "empty_input"),
        (errors.TooManyInputs, 400, "invalid_request_error", "too_many_inputs"),
        (errors.TokenLimitExceeded, 400, "invalid_request_error", "max_tokens_per_request"),
        (errors.ContextLengthExceeded, 400, "invalid_request_error", "context_length_exceeded"),
        (errors.InvalidDimensions, 400, "invalid_request_error", "invalid_dimensions"),
        (errors.InvalidApiKey, 401, "invalid_request_error", "invalid_api_key"),
        (errors.NotFound, 404, "invalid_request_error", "not_found"),
        (errors.ModelNotFound, 404, "invalid_request_error", "model_not_found"),
        (errors.MethodNotAllowed, 405, "invalid_request_error", "method_not_allowed"),
        (errors.RequestTimeout, 408, "invalid_request_error", "request_timeout"),
        (errors.RequestTooLarge, 413, "invalid_request_error", "request_too_large"),
        (errors.UnsupportedMediaType, 415, "invalid_request_error", "unsupported_media_type"),
        (errors.Overloaded, 429, "rate_limit_error", "overloaded"),
        (errors.InternalError, 500, "server_error", "internal_error"),
        (errors.EngineBadOutput, 500, "server_error", "engine_bad_output"),
        (errors.EngineRejected, 500, "server_error", "engine_rejected"),
        (errors.EngineUnavailable, 503, "server_error", "engine_unavailable"),
        (errors.EngineTimeout, 504, "server_error", "engine_timeout"),
    ],
)
async def test_every_status(
    client: httpx.AsyncClient,
    harness: "Harness",
    kind: type[GatewayError],
    status: int,
    error_type: str,
    code: str | None,
) -> None:
    harness.embedder.error = make_error(kind, param="input[3]")
    response = await client.post("/v1/embeddings", json=BODY)
    assert response.status_code == status
    assert check_shape(response) == {
        "message": "What happened.",
        "type": error_type,
        "param": "input[3]",
        "code": code,
    }
    assert harness.sample("requests_total", route="/v1/embeddings", status=str(status)) == 1


@pytest.mark.parametrize("kind", CLASSES)
async def test_every_class(client: httpx.AsyncClient, harness: "Harness", kind: type[GatewayError]) -> None:
    harness.embedder.error = make_error(kind)
    response = await client.post("/v1/embeddings", json=BODY)
    assert (response.status_code, check_shape(response)["code"]) == (kind.status, kind.code)
    assert "retry-after" not in response.headers


async def test_retry_after(client: httpx.AsyncClient, harness: "Harness") -> None:
    harness.embedder.error = errors.Overloaded("Full.", errors.ExceededLimit.QUEUE_TIME, retry_after_s=7)
    assert (await client.post("/v1/embeddings", json=BODY)).headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/favicon.ico", 404, None),
        ("GET", "/nope", 404, None),
        ("POST", "/v1/embedding", 404, None),
        ("GET", "/v1", 404, None),
        ("POST", "/v1/v1/embeddings", 404, None),
        ("GET", "/redoc", 404, None),
        ("GET", "/v1/embeddings", 405, "POST"),
        ("GET", "/embeddings/", 405, "POST"),
        ("HEAD", "/v1/embeddings", 405, "POST"),
        ("PUT", "/v1/embeddings", 405, "POST"),
        ("OPTIONS", "/v1/embeddings", 405, "POST"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("DELETE", "/v1/models/stub", 405, "GET, HEAD"),
        ("POST", "/health/ready", 405, "GET, HEAD"),
        ("POST", "/metrics", 405, "GET, HEAD"),
        ("BREW", "/v1/models", 405, "GET, HEAD"),
    ],
)
async def test_unknown_paths_and_methods(
    client: httpx.AsyncClient, method: str, path: str, status: int, allow: str | None
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert response.headers.get("allow") == allow
    assert "location" not in response.headers
    if method != "HEAD":
        assert check_shape(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'{"input":"a"}', "model"),
        (b'{"model":"stub"}', "input"),
        (b'{"model":null,"input":"a"}', "model"),
        (b'{"model":"stub","input":null}', "input"),
        (b'{"model":"stub","input":NaN}', None),
        (b"[" * 100_000, None),
        (b"\xff\xfe", None),
        (b'{"model":"stub","input":["a",5]}', "input[1]"),
    ],
)
async def test_bad_bodies(client: httpx.AsyncClient, content: bytes, param: str | None) -> None:
    response = await client.post("/v1/embeddings", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert check_shape(response)["param"] == param


async def test_a_crash_is_logged_and_not_told(
    client: httpx.AsyncClient, harness: "Harness", caplog: pytest.LogCaptureFixture
) -> None:
    harness.embedder.error = RuntimeError("a secret")
    response = await client.post("/v1/embeddings", json=BODY, headers={"x-request-id": "request-7"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "request-7"
    assert check_shape(response)["code"] == "internal_error"
    assert b"secret" not in response.content
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.levelno == logging.ERROR
    assert "a secret" in caplog.text
    assert vars(record)["fields"] == {"request_id": "request-7"}
    assert harness.sample("requests_total", route="/v1/embeddings", status="500") == 1
    assert harness.sample("requests_in_flight") == 0


async def test_an_internal_error_is_logged_with_its_cause(
    client: httpx.AsyncClient, harness: "Harness", caplog: pytest.LogCaptureFixture
) -> None:
    harness.embedder.error = errors.EngineRejected("The engine refused the request.")
    harness.embedder.error.__cause__ = ValueError("what Triton said")
    response = await client.post("/v1/embeddings", json=BODY)
    assert b"what Triton said" not in response.content
    assert "what Triton said" in caplog.text


async def test_callers_mistakes_are_no_errors_of_ours(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await client.post("/v1/embeddings", json={"model": "stub", "input": ""})
    await client.get("/nope")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("letter", ["a", "中", "😀", '"', "\x00"])
def test_errors_are_small(letter: str) -> None:
    assert len(error_response(errors.ModelNotFound(letter * 100_000, param="model")).body) < 2000


@pytest.mark.parametrize(
    ("status", "code"), [(400, None), (418, None), (500, "internal_error"), (502, "internal_error")]
)
async def test_what_else_the_framework_may_raise(
    client: httpx.AsyncClient, harness: "Harness", status: int, code: str | None
) -> None:
    harness.embedder.error = HTTPException(status, "a secret")
    response = await client.post("/v1/embeddings", json=BODY)
    assert response.status_code == (400 if status < 500 else 500)
    assert check_shape(response)["code"] == code
    assert b"secret" not in response.content


async def test_the_frameworks_own_validation(client: httpx.AsyncClient, harness: "Harness") -> None:
    harness.embedder.error = RequestValidationError([{"loc": ["body"], "msg": "a secret"}])
    response = await client.post("/v1/embeddings", json=BODY)
    assert response.status_code == 400
    check_shape(response)
    assert b"secret" not in response.content


async def test_a_crash_after_the_answer_began_sends_no_second_one(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("halfway")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    record = RequestRecord("request-7")
    await CrashHandler(app)({"type": "http", "state": {"record": record}}, receive, send)
    assert len(sent) == 1
    assert record.error == "internal_error"
    assert "halfway" in caplog.text
