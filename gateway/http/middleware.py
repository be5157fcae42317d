"""What happens to every request before routing: one path for each route, a request id, metrics, one log line.

Pure ASGI. Order, from the outside: CanonicalTarget, RequestObserver, then DisconnectWatch (connection) and BodyLimit.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics import Metrics

_log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[ -~]{1,128}")
_VERSIONED = ("/embeddings", "/models")
_QUIET_ROUTES = ("/health/live", "/health/ready", "/metrics")
"""Asked every few seconds by machines: their log lines have level debug."""


@dataclass(slots=True)
class RequestRecord:
    """What is known of one request, for its log line; filled while it is answered.

    Attributes:
        request_id: the caller's, if sane, else a new one.
        model: the served model's id, once it is known.
        inputs: number of inputs.
        tokens: number of tokens embedded.
        error: code or type of the error it was answered with.
        caller_gone: whether the caller left before the answer was complete.
    """

    request_id: str
    model: str | None = None
    inputs: int | None = None
    tokens: int | None = None
    error: str | None = None
    caller_gone: bool = False
    started: float = field(default_factory=time.perf_counter)

    def fields(self) -> dict[str, Any]:
        """Return what is known, without the user's text."""
        known = {"model": self.model, "inputs": self.inputs, "tokens": self.tokens, "error": self.error}
        duration_ms = round(1000 * (time.perf_counter() - self.started), 1)
        return {"request_id": self.request_id, "duration_ms": duration_ms} | {
            name: value for name, value in known.items() if value is not None
        }


class CanonicalTarget:
    """Lets a trailing slash, a missing `/v1` and HEAD lead to the same route, without a redirect."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rewrite the path and the method."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"
        method = "GET" if head else scope["method"]
        canonical = {**scope, "path": canonical_path(scope["path"]), "method": method}
        await self.app(canonical, receive, _without_body(send) if head else send)


def canonical_path(path: str) -> str:
    """Return the path with `/v1` and without a trailing slash."""
    path = path.rstrip("/") or "/"
    is_api = any(path == prefix or path.startswith(prefix + "/") for prefix in _VERSIONED)
    return f"/v1{path}" if is_api else path


def _without_body(send: Send) -> Send:
    async def send_headers(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_headers


class RequestObserver:
    """Gives each request an id, counts it, and logs it in one line.

    Args:
        metrics: told of each request.
        route_of: path to route template, `unmatched` for none; the only values of the label `route`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, route_of: Callable[[str], str]) -> None:
        self.app = app
        self._metrics = metrics
        self._route_of = route_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Observe one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = RequestRecord(_request_id(Headers(scope=scope).get("x-request-id")))
        scope.setdefault("state", {})["record"] = record
        route = self._route_of(scope["path"])
        with self._metrics.request(route) as outcome:

            async def send_observed(message: Message) -> None:
                if message["type"] == "http.response.start":
                    outcome.status = message["status"]
                    id_header = (b"x-request-id", record.request_id.encode())
                    message = {**message, "headers": [*message.get("headers", ()), id_header]}
                await send(message)

            try:
                await self.app(scope, receive, send_observed)
            finally:
                outcome.error = record.error
                if record.caller_gone:
                    outcome.status = 499
                    self._count_cancelled(record)
                _write_line(scope["method"], route, outcome.status, record)

    def _count_cancelled(self, record: RequestRecord) -> None:
        if record.model is not None:
            self._metrics.cancelled(record.model)


def _request_id(given: str | None) -> str:
    return given if given and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _write_line(method: str, route: str, status: int, record: RequestRecord) -> None:
    level = logging.DEBUG if route in _QUIET_ROUTES else logging.INFO
    fields = {"method": method, "route": route, "status": status, **record.fields()}
    _log.log(level, "%s %s %d", method, route, status, extra={"fields": fields})
