import asyncio
import base64
import gzip
import time
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import openai
import pytest

from gateway.errors import EngineUnavailable
from gateway.http.readiness import find_unready
from gateway.registry import Registry

if TYPE_CHECKING:
    from tests.gateway.http.conftest import Harness

MODEL = "acme/stub-model"
BODY: dict[str, Any] = {"model": MODEL, "input": "a"}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/embeddings/", "/embeddings", "/embeddings/"])
@pytest.mark.parametrize("model", [MODEL, "stub"])
async def test_embeddings(client: httpx.AsyncClient, harness: "Harness", path: str, model: str) -> None:
    response = await client.post(path, json={"model": model, "input": ["a", "bc"]})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert "x-truncated-inputs" not in response.headers
    document = response.json()
    assert document["object"] == "list"
    assert document["model"] == MODEL
    assert document["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [row["index"] for row in document["data"]] == [0, 1]
    assert {row["object"] for row in document["data"]} == {"embedding"}


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param([f"text {index % 70}" for index in range(100)], id="texts"),
        pytest.param([[index, 1] for index in range(100)], id="ids"),
    ],
)
async def test_order(client: httpx.AsyncClient, inputs: list[Any]) -> None:
    together = (await client.post("/v1/embeddings", json=BODY | {"input": inputs})).json()["data"]
    assert [row["index"] for row in together] == list(range(100))
    for one_input, row in zip(inputs, together, strict=True):
        alone = await client.post("/v1/embeddings", json=BODY | {"input": [one_input]})
        assert alone.json()["data"][0]["embedding"] == row["embedding"]


async def test_ids_are_one_input(client: httpx.AsyncClient, harness: "Harness") -> None:
    response = await client.post("/v1/embeddings", json=BODY | {"input": [1, 2, 3]})
    assert len(response.json()["data"]) == 1
    assert harness.embedder.calls[0]["inputs"] == [[1, 2, 3]]


async def test_base64_equals_float(client: httpx.AsyncClient) -> None:
    floats = (await client.post("/v1/embeddings", json=BODY)).json()["data"][0]["embedding"]
    text = (await client.post("/v1/embeddings", json=BODY | {"encoding_format": "base64"})).json()
    assert base64.b64decode(text["data"][0]["embedding"]) == np.array(floats, "<f4").tobytes()


async def test_what_the_embedder_is_told(client: httpx.AsyncClient, harness: "Harness") -> None:
    fields = {"dimensions": 4, "truncate": "END", "input_type": "query", "user": "u", "other": 1}
    response = await client.post("/v1/embeddings", json=BODY | fields)
    assert len(response.json()["data"][0]["embedding"]) == 4
    call = harness.embedder.calls[0]
    timeout_s = call.pop("timeout_s")
    assert 0 < timeout_s <= 30
    assert call == {"inputs": ["a"], "dimensions": 4, "truncate": "END", "input_type": "query"}


async def test_truncated_inputs_are_told(client: httpx.AsyncClient, harness: "Harness") -> None:
    harness.embedder.truncated = 2
    response = await client.post("/v1/embeddings", json=BODY)
    assert response.headers["x-truncated-inputs"] == "2"
    assert harness.sample("truncated_inputs_total", model=MODEL) == 2


async def test_large_requests_and_answers(harness: "Harness") -> None:
    harness.embedder.dimensions = 768
    texts = [str(index) * 100 for index in range(2048)]
    async with harness.client() as client:
        response = await client.post("/v1/embeddings", json=BODY | {"input": texts})
        single = await client.post("/v1/embeddings", json=BODY | {"input": texts[2000]})
    rows = response.json()["data"]
    assert int(response.headers["content-length"]) == len(response.content)
    assert [row["index"] for row in rows] == list(range(2048))
    assert rows[2000]["embedding"] == single.json()["data"][0]["embedding"]


@pytest.mark.parametrize("count", [2049, 10_000])
async def test_too_many_inputs(client: httpx.AsyncClient, harness: "Harness", count: int) -> None:
    response = await client.post("/v1/embeddings", json=BODY | {"input": ["some text"] * count})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "too_many_inputs"
    assert "2048" in response.json()["error"]["message"]
    assert not harness.embedder.calls


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/vnd.api+json",
        "",
        None,
    ],
)
async def test_content_types(client: httpx.AsyncClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = await client.post("/v1/embeddings", content=b'{"model":"stub","input":"a"}', headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_other_content_types(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    content = gzip.compress(b'{"model":"stub","input":"a"}')
    response = await client.post("/v1/embeddings", content=content, headers=headers)
    assert response.status_code == 415
    assert "JSON" in response.json()["error"]["message"]


@pytest.mark.parametrize("name", ["nope", "ACME/stub-model", "../../etc", "m" * 10_000, "acme", "/acme/stub-model"])
async def test_unknown_model(client: httpx.AsyncClient, harness: "Harness", name: str) -> None:
    response = await client.post("/v1/embeddings", json=BODY | {"model": name})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert MODEL in error["message"]
    assert not harness.embedder.calls


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/models", "/models/"])
async def test_models(client: httpx.AsyncClient, path: str) -> None:
    expected = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "embedding-gateway"}
    assert (await client.get(path)).json() == {"object": "list", "data": [expected]}


@pytest.mark.parametrize("name", [MODEL, "stub", "acme%2Fstub-model", "acme/stub-model/"])
@pytest.mark.parametrize("prefix", ["/v1/models/", "/models/"])
async def test_model(client: httpx.AsyncClient, prefix: str, name: str) -> None:
    response = await client.get(prefix + name)
    assert response.status_code == 200
    assert response.json()["id"] == MODEL


async def test_unknown_model_by_path(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models/no/such")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


KEYED = [
    ("POST", "/v1/embeddings"),
    ("POST", "/embeddings/"),
    ("GET", "/v1/models"),
    ("GET", "/models"),
    ("GET", "/v1/models/stub"),
    ("GET", "/models/stub"),
    ("HEAD", "/v1/models"),
]


@pytest.mark.parametrize(("method", "path"), KEYED)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer right1 ", "Basic right1", "right1", "Bearer r\u00e9ght"],
)
async def test_wrong_keys(harness: "Harness", method: str, path: str, authorization: str | None) -> None:
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
    if authorization == "Bearer right1 ":
        headers = [(b"authorization", b"Bearer right1right2")]
    async with harness.client(api_keys=["right1", "right2"]) as client:
        response = await client.request(method, path, content=b"not json", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(("method", "path"), KEYED)
@pytest.mark.parametrize("authorization", ["Bearer right1", "bearer right2"])
async def test_right_keys(harness: "Harness", method: str, path: str, authorization: str) -> None:
    async with harness.client(api_keys=["right1", "right2"]) as client:
        response = await client.request(method, path, json=BODY, headers={"authorization": authorization})
    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"])
async def test_open_routes(harness: "Harness", path: str) -> None:
    async with harness.client(api_keys=["key"]) as client:
        assert (await client.get(path)).status_code == 200
        head = await client.head(path)
    assert head.status_code == 200
    assert head.content == b""
    assert int(head.headers["content-length"]) > 0


async def test_the_key_is_checked_before_the_body_is_read(harness: "Harness") -> None:
    asked = False

    async def body() -> Any:
        nonlocal asked
        asked = True
        yield b"{}"

    async with harness.client(api_keys=["key"]) as client:
        response = await client.post("/v1/embeddings", content=body())
    assert response.status_code == 401
    assert not asked


async def test_live(client: httpx.AsyncClient, harness: "Harness") -> None:
    harness.embedder.unready = "broken"
    assert (await client.get("/health/live")).json() == {"status": "live"}


async def test_ready(client: httpx.AsyncClient, harness: "Harness") -> None:
    response = await client.get("/health/ready")
    assert response.status_code == 200
    assert response.json() == {"status": "ready"}
    assert harness.sample("model_ready", model=MODEL) == 1


async def test_not_ready(client: httpx.AsyncClient, harness: "Harness") -> None:
    harness.embedder.unready = "its vectors differ from its manifest's"
    response = await client.get("/health/ready")
    assert response.status_code == 503
    error = response.json()["error"]
    assert error["code"] == "engine_unavailable"
    assert MODEL in error["message"]
    assert "its vectors differ from its manifest's" in error["message"]
    assert response.headers["retry-after"] == "1"
    assert harness.sample("model_ready", model=MODEL) == 0


async def test_ready_answers_within_a_second_when_the_check_hangs(harness: "Harness") -> None:
    harness.embedder.hang = True
    async with harness.client() as client:
        started = time.perf_counter()
        response = await client.get("/health/ready")
        assert time.perf_counter() - started < 1
        assert response.status_code == 503
        assert "in time" in response.json()["error"]["message"]
        await asyncio.sleep(0)


async def test_ready_without_models(harness: "Harness") -> None:
    assert await find_unready(Registry([], {}), harness.metrics) == {}


async def test_metrics(client: httpx.AsyncClient, harness: "Harness") -> None:
    await client.post("/embeddings/", json=BODY)
    await client.get("/models/stub")
    await client.get("/no/such/path")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["content-type"].count("charset") == 1
    assert 'gateway_requests_total{route="/v1/embeddings",status="200"} 1.0' in response.text
    assert harness.sample("requests_total", route="/v1/models/{id}", status="200") == 1
    assert harness.sample("requests_total", route="unmatched", status="404") == 1
    assert harness.sample("inputs_total", model=MODEL) == 1
    assert harness.sample("stage_duration_seconds_count", model=MODEL, stage="render") == 1


async def test_openai_client(harness: "Harness") -> None:
    async with harness.server(api_keys=["key"]) as port:
        base_url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
            default = await client.embeddings.create(model=MODEL, input=["a", "b"])
            floats = await client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
            first, second = (np.array([row.embedding for row in answer.data]) for answer in (default, floats))
            assert np.array_equal(first.astype(np.float32), second.astype(np.float32))
            assert (await client.models.list()).data[0].id == MODEL
            assert (await client.models.retrieve(MODEL)).id == MODEL
            with pytest.raises(openai.BadRequestError, match="empty") as bad_request:
                await client.embeddings.create(model=MODEL, input=["a", ""])
            assert (bad_request.value.code, bad_request.value.param) == ("empty_input", "input[1]")
            with pytest.raises(openai.NotFoundError, match="Served here"):
                await client.embeddings.create(model="nope", input="a")
            harness.embedder.error = EngineUnavailable("Triton is not there.", retry_after_s=1)
            with pytest.raises(openai.InternalServerError, match="Triton is not there"):
                await client.embeddings.create(model=MODEL, input="a")
        async with openai.AsyncOpenAI(base_url=base_url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="key is not right"):
                await client.models.list()
