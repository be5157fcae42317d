"""Turns every error into an answer of the one shape. Errors come here straight from where they are raised."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import (
    GatewayError,
    InternalError,
    InvalidApiKey,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    RequestTimeout,
)
from gateway.http.middleware import RequestRecord

_log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 1500
_INTERNAL_MESSAGE = "The gateway failed. Its log has the details under this answer's x-request-id."


def error_response(error: GatewayError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to an error, with the headers that its class asks for; under 2 kB."""
    detail = {"message": _shorten(error.message), "type": error.type, "param": error.param, "code": error.code}
    more: dict[str, str] = dict(headers or {})
    if error.retry_after_s is not None:
        more["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, InvalidApiKey):
        more["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RequestTimeout):
        more["Connection"] = "close"
    return Response(orjson.dumps({"error": detail}), error.status, more, "application/json")


def _shorten(message: str) -> str:
    while len(orjson.dumps(message)) > _MAX_MESSAGE_BYTES:
        message = f"{message[: len(message) * 3 // 4]}…"
    return message


async def _answer_gateway_error(request: Request, error: GatewayError) -> Response:
    record: RequestRecord = request.state.record
    record.error = error.code or error.type
    if isinstance(error, Overloaded):
        record.limit = error.limit
    if isinstance(error, InternalError):
        _log.error("%s", error.code, exc_info=error, extra={"fields": {"request_id": record.request_id}})
    return error_response(error)


async def _answer_http_exception(request: Request, error: HTTPException) -> Response:
    """Answer what the framework raises: 404 and 405."""
    headers = dict(error.headers or {})
    record: RequestRecord = request.state.record
    answer = _translate(error, headers)
    record.error = answer.code
    return error_response(answer, headers)


def _translate(error: HTTPException, headers: dict[str, str]) -> GatewayError:
    if error.status_code == 404:
        return NotFound("There is no such path. The paths are listed at /docs.")
    if error.status_code == 405:
        methods = sorted(method.strip() for method in headers.pop("Allow", "").split(","))
        headers["Allow"] = ", ".join([*methods, "HEAD"] if "GET" in methods else methods)
        return MethodNotAllowed(f"This path takes {headers['Allow']}.")
    return InvalidRequest("The request is not valid.") if error.status_code < 500 else InternalError(_INTERNAL_MESSAGE)


async def _answer_validation_error(request: Request, error: RequestValidationError) -> Response:
    """Answer what the framework's own validation refuses. No route relies on it."""
    return error_response(InvalidRequest("The request is not valid."))


async def _answer_crash(request: Request, error: Exception) -> Response:
    """Answer what nobody foresaw; CrashHandler, which sees it afterwards, logs it."""
    return error_response(InternalError(_INTERNAL_MESSAGE))


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    GatewayError: _answer_gateway_error,
    HTTPException: _answer_http_exception,
    RequestValidationError: _answer_validation_error,
    Exception: _answer_crash,
}

ANSWERED = (GatewayError, HTTPException, RequestValidationError)
"""The exceptions that have an answer of their own."""


async def answer_error(request: Request, error: Exception) -> Response:
    """Return the answer to one of ANSWERED, where the framework does not look it up itself."""
    handler = next(EXCEPTION_HANDLERS[kind] for kind in ANSWERED if isinstance(error, kind))
    return await handler(request, error)


class CrashHandler:
    """Logs an exception that nobody foresaw, with the request's id, and answers without its text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; if it crashes, answer for it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_noting_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, send_noting_start)
        except Exception:  # noqa: BLE001 - the last resort; logged with its traceback
            record: RequestRecord = scope["state"]["record"]
            record.error = InternalError.code
            _log.exception("unforeseen exception", extra={"fields": {"request_id": record.request_id}})
            if not started:
                await error_response(InternalError(_INTERNAL_MESSAGE))(scope, receive, send)
