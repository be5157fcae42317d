import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gateway.errors import ExceededLimit, Overloaded
from gateway.http.middleware import canonical_path

if TYPE_CHECKING:
    from tests.gateway.http.conftest import Harness

BODY = {"model": "stub", "input": ["the user's text", "b"]}


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("/v1/embeddings", "/v1/embeddings"),
        ("/v1/embeddings/", "/v1/embeddings"),
        ("/embeddings", "/v1/embeddings"),
        ("/embeddings//", "/v1/embeddings"),
        ("/models/a/b/", "/v1/models/a/b"),
        ("/models", "/v1/models"),
        ("/modelsx", "/modelsx"),
        ("/health/live/", "/health/live"),
        ("/", "/"),
        ("//", "/"),
        ("", "/"),
    ],
)
def test_canonical_path(path: str, canonical: str) -> None:
    assert canonical_path(path) == canonical


@pytest.mark.parametrize("given", ["a", "request-7", "with space", "~" * 128, '{"json":1}'])
async def test_a_sane_request_id_is_kept(client: httpx.AsyncClient, given: str) -> None:
    for path in ("/health/live", "/nope"):
        response = await client.get(path, headers={"x-request-id": given})
        assert response.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize("given", [None, "", "x" * 129, "tab\tin", "é", "中"])
async def test_another_request_id_is_replaced(client: httpx.AsyncClient, given: str | None) -> None:
    headers = [] if given is None else [(b"x-request-id", given.encode())]
    first, second = [(await client.get("/health/live", headers=headers)).headers["x-request-id"] for _ in range(2)]
    assert len(first) == 32
    assert int(first, 16) > 0
    assert first != second


def fields_of(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = [record for record in caplog.records if record.name == "gateway.http.middleware"]
    assert "user's text" not in record.getMessage()
    fields: dict[str, Any] = vars(record)["fields"]
    assert "user's text" not in str(fields)
    return fields


async def test_one_line_for_a_request(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await client.post("/embeddings/", json=BODY, headers={"x-request-id": "request-7"})
    fields = fields_of(caplog)
    assert fields.pop("duration_ms") > 0
    assert fields.pop("render_ms") > 0
    assert fields == {
        "method": "POST",
        "route": "/v1/embeddings",
        "status": 200,
        "request_id": "request-7",
        "model": "acme/stub-model",
        "inputs": 2,
        "tokens": 20,
        # As the stub says.
        "tokenize_ms": 0.1,
        "queue_ms": 20.0,
        "infer_ms": 3000.0,
        "pool_ms": 400.0,
    }


async def test_one_line_for_an_error(
    client: httpx.AsyncClient, harness: "Harness", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    harness.embedder.error = Overloaded("Full.", ExceededLimit.QUEUE_TIME)
    await client.post("/v1/embeddings", json=BODY)
    fields = fields_of(caplog)
    assert (fields["status"], fields["error"], fields["inputs"]) == (429, "overloaded", 2)
    assert fields["limit"] == "queue_time"
    assert not [name for name in fields if name.endswith("_ms") and name != "duration_ms"]


async def test_unmatched_paths_are_not_logged(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await client.get("/secret/path")
    assert fields_of(caplog)["route"] == "unmatched"
    assert not [record for record in caplog.records if record.name != "httpx" and "secret" in record.getMessage()]


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
async def test_probes_are_logged_for_debugging_only(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="gateway.http.middleware")
    await client.get(path)
    assert fields_of(caplog)["route"] == path
    assert [record.levelno for record in caplog.records if record.name == "gateway.http.middleware"] == [logging.DEBUG]


@pytest.mark.parametrize("origin", ["https://page.example", "*"])
async def test_cors(harness: "Harness", origin: str) -> None:
    preflight = {
        "origin": "https://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    async with harness.client(cors_origins=[origin], api_keys=["key"]) as client:
        response = await client.options("/v1/embeddings", headers=preflight)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] in ("https://page.example", "*")
        assert "authorization" in response.headers["access-control-allow-headers"]
        refused = await client.post("/v1/embeddings", json=BODY, headers={"origin": "https://page.example"})
        assert refused.status_code == 401
        assert "access-control-allow-origin" in refused.headers
        assert "x-request-id" in refused.headers["access-control-expose-headers"]


async def test_no_cors_by_default(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/embeddings", json=BODY, headers={"origin": "https://page.example"})
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]
