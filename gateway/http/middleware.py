"""What happens to every request before routing: one path for each route, a request id, metrics, one log line.

Pure ASGI. Order, from the outside: CanonicalTarget, RequestObserver, then DisconnectWatch (connection) and BodyLimit.
"""

import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ExceededLimit
from gateway.metrics import Metrics
from gateway.types import Timings

if TYPE_CHECKING:
    from gateway.tracing import RequestTrace, Tracing

_log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[ -~]{1,128}")
_VERSIONED = ("/embeddings", "/models")
_QUIET_ROUTES = ("/health/live", "/health/ready", "/metrics")
"""Asked every few seconds by machines: their log lines have level debug, and they are not traced."""
_UNMATCHED = "unmatched"


@dataclass(slots=True)
class RequestRecord:
    """What is known of one request, for its log line; filled while it is answered.

    Attributes:
        request_id: the caller's, if sane, else a new one.
        model: the served model's id, once it is known.
        inputs: number of inputs.
        tokens: number of tokens embedded.
        timings: where the time went, once its inputs are embedded.
        render_s: seconds that its answer took to write.
        error: code or type of the error it was answered with.
        limit: the limit that it was refused for.
        caller_gone: whether the caller left before the answer was complete.
        trace: its span, if it is traced.
    """

    request_id: str
    model: str | None = None
    inputs: int | None = None
    tokens: int | None = None
    timings: Timings | None = None
    render_s: float | None = None
    error: str | None = None
    limit: ExceededLimit | None = None
    caller_gone: bool = False
    trace: "RequestTrace | None" = None
    started: float = field(default_factory=time.perf_counter)

    def fields(self) -> dict[str, Any]:
        """Return what is known, without the user's text."""
        known = {
            "trace_id": self.trace and self.trace.trace_id,
            "model": self.model,
            "inputs": self.inputs,
            "tokens": self.tokens,
            **self._stages_ms(),
            "error": self.error,
            "limit": self.limit,
        }
        duration_ms = round(1000 * (time.perf_counter() - self.started), 1)
        return {"request_id": self.request_id, "duration_ms": duration_ms} | {
            name: value for name, value in known.items() if value is not None
        }

    def _stages_ms(self) -> dict[str, float | None]:
        if self.timings is None:
            return {}
        return {
            "tokenize_ms": round(1000 * self.timings.tokenize_s, 2),
            "queue_ms": round(1000 * self.timings.queue_s, 2),
            "infer_ms": round(1000 * self.timings.infer_s, 2),
            "pool_ms": round(1000 * self.timings.pool_s, 2),
            "render_ms": None if self.render_s is None else round(1000 * self.render_s, 2),
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


@lru_cache(1024)
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
    """Gives each request an id, counts it, traces it, and logs it in one line.

    Args:
        metrics: told of each request.
        route_of: path to route template, `unmatched` for none; the only values of the label `route`.
        tracing: told of each request that a caller made; None if it is off.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, route_of: Callable[[str], str], tracing: "Tracing | None" = None
    ) -> None:
        self.app = app
        self._metrics = metrics
        self._route_of = route_of
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Observe one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = RequestRecord(_request_id(Headers(scope=scope).get("x-request-id")))
        scope.setdefault("state", {})["record"] = record
        route = self._route_of(scope["path"])
        if self._tracing is not None and route not in _QUIET_ROUTES:
            record.trace = _start_trace(self._tracing, scope, route)
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
                outcome.error, outcome.limit = record.error, record.limit
                if record.caller_gone:
                    outcome.status = 499
                    self._count_cancelled(record)
                _write_line(scope["method"], route, outcome.status, record)
                if record.trace is not None:
                    _end_trace(record.trace, outcome.status, record)

    def _count_cancelled(self, record: RequestRecord) -> None:
        if record.model is not None:
            self._metrics.cancelled(record.model)


def _request_id(given: str | None) -> str:
    return given if given and _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


def _start_trace(tracing: "Tracing", scope: Scope, route: str) -> "RequestTrace | None":
    return tracing.request(
        method=scope["method"],
        route=None if route == _UNMATCHED else route,
        scheme=scope["scheme"],
        headers=Headers(scope=scope),
    )


def _end_trace(trace: "RequestTrace", status: int, record: RequestRecord) -> None:
    trace.end(
        status=status,
        error=record.error,
        request_id=record.request_id,
        model=record.model,
        inputs=record.inputs,
        tokens=record.tokens,
    )


def _write_line(method: str, route: str, status: int, record: RequestRecord) -> None:
    level = logging.DEBUG if route in _QUIET_ROUTES else logging.INFO
    if _log.isEnabledFor(level):
        fields = {"method": method, "route": route, "status": status, **record.fields()}
        _log.log(level, "%s %s %d", method, route, status, extra={"fields": fields})
