"""The parts of the OpenAPI document that types cannot say: error answers, headers, and the embeddings body."""

from typing import Any

from gateway.http.deadline import TIMEOUT_HEADER
from gateway.http.schemas import EmbeddingsRequest, EmbeddingsResponse, ErrorResponse

_DESCRIPTIONS = {
    400: "The request breaks a rule; `param` names the field and the first bad index.",
    401: "No API key, or a wrong one.",
    404: "No such model.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The body is not JSON by its content type.",
    429: "Too much is waiting; nothing was done.",
    500: "The gateway or the engine failed.",
    503: "The engine cannot be reached, or a model is not ready.",
    504: "The deadline passed.",
}
_HEADERS = {
    401: {"WWW-Authenticate": "Always `Bearer`."},
    429: {"Retry-After": "Seconds after which a retry is worth it."},
    503: {"Retry-After": "Seconds after which a retry is worth it."},
}

Responses = dict[int | str, dict[str, Any]]


def error_responses(*statuses: int) -> Responses:
    """Return the documentation of a route's errors."""
    return {
        status: {
            "model": ErrorResponse,
            "description": _DESCRIPTIONS[status],
            "headers": _headers(_HEADERS.get(status, {})),
        }
        for status in statuses
    }


def _headers(texts: dict[str, str]) -> dict[str, Any]:
    texts = {"x-request-id": "The caller's request id, or a new one.", **texts}
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()}


EMBEDDINGS_RESPONSES: Responses = {
    200: {
        "model": EmbeddingsResponse,
        "description": "The vectors, in input order.",
        "headers": _headers({"x-truncated-inputs": "How many inputs were cut; only if some were."}),
    },
    **error_responses(400, 401, 404, 408, 413, 415, 429, 500, 503, 504),
}

_EXAMPLE_INPUTS = {
    "text": "The quick brown fox",
    "texts": ["The quick brown fox", "jumps over the lazy dog"],
    "token ids of one input": [2023, 2003, 2028],
    "token ids of several inputs": [[2023, 2003], [2028]],
}

EMBEDDINGS_BODY: dict[str, Any] = {
    "parameters": [
        {
            "name": TIMEOUT_HEADER,
            "in": "header",
            "required": False,
            "description": "Seconds after which the caller no longer wants an answer; at most the gateway's own limit.",
            "schema": {"type": "number", "exclusiveMinimum": 0},
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": EmbeddingsRequest.model_json_schema(),
                "examples": {
                    name: {"value": {"model": "all-MiniLM-L6-v2", "input": value}}
                    for name, value in _EXAMPLE_INPUTS.items()
                },
            }
        },
    },
}

MODEL_ID: dict[str, Any] = {
    "parameters": [
        {
            "name": "id",
            "in": "path",
            "required": True,
            "description": "A served model or an alias of one; may contain slashes.",
            "schema": {"type": "string"},
        }
    ]
}
