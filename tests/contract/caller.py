"""Asks a gateway over HTTP, and checks what every answer must have."""

import base64
import json
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np

from gateway.http.schemas import EmbeddingsResponse, ErrorResponse
from gateway.types import Float32Array
from tests.integration.triton_figures import DEMO_MODEL

KEY = "the-right-key"
ALIAS = "sentence-transformers/all-MiniLM-L6-v2"


class Caller:
    """A caller of one gateway.

    Args:
        url: where it listens.
        headers: sent with every request.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.url = url
        self.client = httpx.Client(base_url=url, headers=headers, timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.client.close()

    def post(self, fields: object) -> httpx.Response:
        """Send a body; a `str` as it is."""
        body = fields if isinstance(fields, str) else json.dumps(fields)
        return self.client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})

    def ask(self, value: Any, **fields: Any) -> httpx.Response:
        """Ask for embeddings of any `input`."""
        return self.post({"model": DEMO_MODEL, "input": value, **fields})

    def embed(self, value: Any, **fields: Any) -> Float32Array:
        """Return the vectors; check the whole answer."""
        vectors, _ = self.embed_counting(value, **fields)
        return vectors

    def embed_counting(self, value: Any, **fields: Any) -> tuple[Float32Array, int]:
        """Return the vectors and the tokens."""
        response = self.ask(value, **fields)
        assert response.status_code == 200, response.text
        return read_vectors(response)

    def refused(self, value: Any, **fields: Any) -> dict[str, Any]:
        """Return the error, which must be a 400."""
        response = self.ask(value, **fields)
        assert response.status_code == 400, response.text
        return read_error(response)

    def metric(self, series: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.partition("{")[0] == series)


def read_vectors(response: httpx.Response) -> tuple[Float32Array, int]:
    """Check an answer and return float32 [N,D] and its tokens; each vector is finite and of unit length."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    document = response.json()
    answer = EmbeddingsResponse.model_validate(document, strict=True)
    assert set(document) == {"object", "data", "model", "usage"}
    assert [row.index for row in answer.data] == list(range(len(answer.data)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    vectors = np.stack([read_vector(row.embedding) for row in answer.data])
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    return vectors, answer.usage.prompt_tokens


def read_vector(value: list[float] | str) -> Float32Array:
    """Return a row's vector, whichever way it is written."""
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
    return np.array(value, np.float32)


def read_error(response: httpx.Response) -> dict[str, Any]:
    """Check an error's shape and size and return what is in it."""
    assert response.status_code >= 400
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert len(response.content) < 2000
    assert set(response.json()) == {"error"}
    error = ErrorResponse.model_validate_json(response.content, strict=True).error
    return error.model_dump()
