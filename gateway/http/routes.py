"""The HTTP routes: embeddings, models, health, metrics. They ask deps for what they need and raise; nothing else."""

import time
from functools import partial

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.errors import EngineUnavailable, UnsupportedMediaType
from gateway.http.deadline import read_timeout
from gateway.http.deps import RecordDep, Services, ServicesDep, require_api_key
from gateway.http.docs_page import render_page
from gateway.http.middleware import RequestRecord
from gateway.http.openapi import EMBEDDINGS_BODY, EMBEDDINGS_RESPONSES, MODEL_ID, error_responses
from gateway.http.readiness import find_unready
from gateway.http.rendering import render_embeddings
from gateway.http.schemas import (
    EmbeddingsCall,
    EncodingFormat,
    Health,
    Model,
    ModelList,
    parse_embeddings_request,
)
from gateway.registry import ServedModel
from gateway.types import EmbeddingResult

EMBEDDINGS_PATH = "/v1/embeddings"
_LARGE_BODY_BYTES = 64 * 1024
_LARGE_ANSWER_FLOATS = 32 * 1024

api = APIRouter(dependencies=[Depends(require_api_key)], tags=["OpenAI"])
operations = APIRouter(tags=["operations"])


@api.post(EMBEDDINGS_PATH, openapi_extra=EMBEDDINGS_BODY, responses=EMBEDDINGS_RESPONSES)
async def create_embeddings(request: Request, services: ServicesDep, record: RecordDep) -> Response:
    """Embed one or several inputs; all or none."""
    _check_content_type(request)
    timeout_s = read_timeout(request.headers, services.settings.request_timeout_s)
    body = await _read_body(request)
    deadline = time.monotonic() + timeout_s
    call = await _parse(services, body)
    served = services.registry.resolve(call.model)
    record.model, record.inputs = served.id, len(call.inputs)
    result = await served.embedder.embed(
        call.inputs,
        dimensions=call.dimensions,
        truncate=call.truncate,
        input_type=call.input_type,
        timeout_s=deadline - time.monotonic(),
        trace=record.trace,
    )
    record.tokens, record.timings = result.prompt_tokens, result.timings
    return await _answer(services, record, served.id, result, call.encoding_format)


async def _parse(services: Services, body: bytearray) -> EmbeddingsCall:
    """Parse the body and free its bytes, so that a request that waits holds its inputs only."""
    settings = services.settings
    parse = partial(
        parse_embeddings_request, body, max_inputs=settings.max_inputs, max_tokens=settings.max_request_tokens
    )
    call = await services.run_json(parse, is_large=len(body) > _LARGE_BODY_BYTES)
    body.clear()
    return call


async def _answer(
    services: Services, record: RequestRecord, model: str, result: EmbeddingResult, encoding_format: EncodingFormat
) -> Response:
    started = time.perf_counter()
    render = partial(render_embeddings, result, model, encoding_format)
    slices = await services.run_json(render, is_large=result.embeddings.size > _LARGE_ANSWER_FLOATS)
    rendered = time.perf_counter()
    record.render_s = rendered - started
    services.metrics.embedded(model, result, record.render_s)
    if record.trace is not None:
        record.trace.stage("render", started, rendered)
    headers = {"x-truncated-inputs": str(result.truncated_inputs)} if result.truncated_inputs else {}
    return SlicedResponse(slices, headers)


class SlicedResponse(Response):
    """JSON in slices: the connection takes one after the other, as fast as its caller reads."""

    def __init__(self, slices: list[bytes], headers: dict[str, str]) -> None:
        length = {"content-length": str(sum(map(len, slices)))}
        super().__init__(None, headers=headers | length, media_type="application/json")
        self._slices = slices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all slices."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = len(self._slices) - 1
        for index, body in enumerate(self._slices):
            await send({"type": "http.response.body", "body": body, "more_body": index < last})


def _check_content_type(request: Request) -> None:
    """Accept JSON, and requests that do not say what they send.

    Raises:
        UnsupportedMediaType: the body is said to be something else, or compressed.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in ("", "application/json") and not media_type.endswith("+json"):
        raise UnsupportedMediaType("Send JSON, with the header `Content-Type: application/json`.")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("Compressed bodies are not taken; send plain JSON.")


async def _read_body(request: Request) -> bytearray:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
    return body


@api.get("/v1/models", responses=error_responses(401))
async def list_models(services: ServicesDep) -> ModelList:
    """List the served models."""
    return ModelList(data=[_describe(model) for model in services.registry])


@api.get("/v1/models/{id:path}", responses=error_responses(401, 404), openapi_extra=MODEL_ID)
async def retrieve_model(request: Request, services: ServicesDep) -> Model:
    """Describe one served model, by its name or an alias."""
    return _describe(services.registry.resolve(request.path_params["id"]))


def _describe(model: ServedModel) -> Model:
    return Model(id=model.id, created=model.created)


@operations.get("/health/live")
async def check_live() -> Health:
    """Say that the process runs."""
    return Health(status="live")


@operations.get("/health/ready", responses=error_responses(503))
async def check_ready(services: ServicesDep) -> Health:
    """Say whether every model can answer; within one second."""
    unready = await find_unready(services.registry, services.metrics)
    if unready:
        reasons = " ".join(f"Model {model}: {reason}" for model, reason in unready.items())
        raise EngineUnavailable(f"Not ready. {reasons}", retry_after_s=1)
    return Health(status="ready")


@operations.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def show_metrics(services: ServicesDep) -> Response:
    """Show all metrics in Prometheus' text format."""
    return Response(services.metrics.render(), media_type=services.metrics.content_type)


@operations.get("/docs", include_in_schema=False)
async def show_docs(request: Request) -> HTMLResponse:
    """Show the OpenAPI document as a page."""
    return HTMLResponse(render_page(request.app.openapi()))
