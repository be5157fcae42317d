import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gateway.http.schemas import parse_embeddings_request

if TYPE_CHECKING:
    from tests.gateway.http.conftest import Harness

ROUTES = {
    ("/v1/embeddings", "post"): {200, 400, 401, 404, 408, 413, 415, 429, 500, 503, 504},
    ("/v1/models", "get"): {200, 401},
    ("/v1/models/{id}", "get"): {200, 401, 404},
    ("/health/live", "get"): {200},
    ("/health/ready", "get"): {200, 503},
    ("/metrics", "get"): {200},
}


@pytest.fixture
def document(harness: "Harness") -> dict[str, Any]:
    return harness.app().openapi()


@pytest.fixture
def embeddings(document: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = document["paths"]["/v1/embeddings"]["post"]
    return operation


def test_routes_and_statuses(document: dict[str, Any]) -> None:
    documented = {
        (path, method): set(map(int, operation["responses"]))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert documented == ROUTES


def test_every_error_has_the_shape(document: dict[str, Any]) -> None:
    for path, method in ROUTES:
        for status, response in document["paths"][path][method]["responses"].items():
            if int(status) >= 400:
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorResponse"}
                assert response["description"]
                assert "x-request-id" in response["headers"]
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_keys(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    for path, method in ROUTES:
        assert ("security" in document["paths"][path][method]) == path.startswith("/v1/")


def test_the_body(embeddings: dict[str, Any]) -> None:
    body = embeddings["requestBody"]
    assert body["required"]
    schema = body["content"]["application/json"]["schema"]
    assert set(schema["required"]) == {"input", "model"}
    assert set(schema["properties"]) == {
        "input",
        "model",
        "encoding_format",
        "dimensions",
        "user",
        "truncate",
        "input_type",
    }
    assert [kind["type"] for kind in schema["properties"]["input"]["oneOf"]] == ["string", "array", "array", "array"]
    assert schema.get("additionalProperties", True)
    assert "$defs" not in schema


def test_examples_are_valid(embeddings: dict[str, Any]) -> None:
    examples = embeddings["requestBody"]["content"]["application/json"]["examples"]
    calls = [
        parse_embeddings_request(json.dumps(example["value"]).encode(), max_inputs=10, max_tokens=10)
        for example in examples.values()
    ]
    assert [len(call.inputs) for call in calls] == [1, 2, 1, 2]


def test_the_path_parameter(document: dict[str, Any]) -> None:
    (parameter,) = document["paths"]["/v1/models/{id}"]["get"]["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("id", "path", True)


def test_headers(embeddings: dict[str, Any]) -> None:
    responses = embeddings["responses"]
    assert set(responses["200"]["headers"]) == {"x-request-id", "x-truncated-inputs"}
    assert "WWW-Authenticate" in responses["401"]["headers"]
    assert "Retry-After" in responses["429"]["headers"]
    assert "Retry-After" in responses["503"]["headers"]


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_it_is_served(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 200
