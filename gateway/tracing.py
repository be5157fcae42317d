"""OpenTelemetry spans, sent over OTLP: one a request, one for each of its stages, and one an engine call.

The only importer of opentelemetry, and itself imported only where tracing is on (`settings.tracing_is_on`): else it
costs nothing. Endpoint, sampler, queue and names come from the SDK's own OTEL_* variables. A span never has a text, a
key or a path: a caller may have written anything there.
"""

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.http_attributes import (
    HTTP_REQUEST_METHOD,
    HTTP_RESPONSE_STATUS_CODE,
    HTTP_ROUTE,
)
from opentelemetry.semconv.attributes.service_attributes import SERVICE_NAME, SERVICE_VERSION
from opentelemetry.semconv.attributes.url_attributes import URL_SCHEME
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes

from gateway import __version__
from gateway.errors import GatewayError, StartupError

_FLUSH_S = 3.0
"""How long a gateway that stops waits for the collector."""

_PROPAGATOR = TraceContextTextMapPropagator()
"""traceparent and tracestate. Baggage is not passed on: it may hold anything."""

# The conventions for generative AI are still in development: their names are no constants of the SDK's yet.
_OPERATION = "gen_ai.operation.name"
_MODEL = "gen_ai.request.model"
_TOKENS = "gen_ai.usage.input_tokens"
# What no convention has a name for.
_INPUTS = "gateway.inputs"
_REQUEST_ID = "gateway.request_id"
_BATCH_ROWS = "gateway.batch.rows"
_BATCH_LENGTH = "gateway.batch.sequence_length"


class RequestTrace:
    """The span of one sampled request, and the stages that it went through. Times are time.perf_counter's."""

    def __init__(self, tracer: Tracer, span: Span, clock_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._clock_ns = clock_ns
        self._stages: dict[str, tuple[float, float]] = {}
        self._calls: list[Link] = []

    @property
    def trace_id(self) -> str:
        """The trace's id, 32 hexadecimal digits, as the log shows it."""
        return format_trace_id(self.span_context.trace_id)

    @property
    def span_context(self) -> SpanContext:
        """What links to this request hold."""
        return self._span.get_span_context()

    @property
    def context(self) -> Context:
        """What makes a span this request's child."""
        return set_span_in_context(self._span)

    def wall_ns(self, moment: float) -> int:
        """Return a moment as Unix time in nanoseconds; by one clock for all spans of a request, so that they nest."""
        return self._clock_ns + round(moment * 1e9)

    def stage(self, name: str, started: float, ended: float) -> None:
        """Note a stage; one of several parts lasts from the first one's start to the last one's end."""
        first, last = self._stages.get(name, (started, ended))
        self._stages[name] = (min(first, started), max(last, ended))

    def served_by(self, call: Span) -> None:
        """Note an engine call that had a part of this request."""
        self._calls.append(Link(call.get_span_context()))

    def end(
        self,
        *,
        status: int,
        error: str | None,
        request_id: str,
        model: str | None,
        inputs: int | None,
        tokens: int | None,
    ) -> None:
        """End the request's span and those of its stages; what is None is not known, and left out.

        Args:
            status: HTTP status, 499 for a caller who left.
            error: code of the error it was answered with.
            request_id: its x-request-id.
            model: the served model's id.
            inputs: how many inputs it had.
            tokens: how many tokens were embedded.
        """
        for name, (started, ended) in self._stages.items():
            links = self._calls if name == "infer" else ()
            stage = self._tracer.start_span(name, self.context, links=links, start_time=self.wall_ns(started))
            stage.end(self.wall_ns(ended))
        attributes = {
            HTTP_RESPONSE_STATUS_CODE: status,
            ERROR_TYPE: error,
            _REQUEST_ID: request_id,
            _OPERATION: None if model is None else "embeddings",
            _MODEL: model,
            _INPUTS: inputs,
            _TOKENS: tokens,
        }
        self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end(self.wall_ns(time.perf_counter()))


class Tracing:
    """Makes spans, and sends them in the background.

    Args:
        exporter: sends them.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("gateway", __version__)

    def request(
        self, *, method: str, route: str | None, scheme: str, headers: Mapping[str, str]
    ) -> RequestTrace | None:
        """Begin a request's span, as a child of its caller's; None if it is not sampled.

        Args:
            method: HTTP method.
            route: template of its path; None if no route has it.
            scheme: http or https.
            headers: the request's; names in any case.
        """
        started = time.perf_counter()
        clock_ns = time.time_ns() - round(started * 1e9)
        attributes = {HTTP_REQUEST_METHOD: method, URL_SCHEME: scheme}
        span = self._tracer.start_span(
            f"{method} {route}" if route else method,
            _PROPAGATOR.extract(headers),
            SpanKind.SERVER,
            attributes | {HTTP_ROUTE: route} if route else attributes,
            start_time=clock_ns + round(started * 1e9),
        )
        return RequestTrace(self._tracer, span, clock_ns) if span.get_span_context().trace_flags.sampled else None

    @contextmanager
    def call(
        self, requests: Iterable[RequestTrace | None], *, model: str, rows: int, length: int
    ) -> Iterator[dict[str, str] | None]:
        """Time one engine call; give the headers that take its span's context along, None if nobody is traced.

        A span has one parent, and a batch is several requests': the first of them is it, so that the call is sampled as
        requests are and stands in a trace with its caller. It has links to all of them, and each has one to it.

        Args:
            requests: whose inputs the call has, in order; None where a request is not traced.
            model: the served model's id.
            rows: rows of the batch.
            length: its padded sequence length.
        """
        traced = [request for request in dict.fromkeys(requests) if request is not None]
        if not traced:
            yield None
            return
        first = traced[0]
        started = time.perf_counter()
        span = self._tracer.start_span(
            "engine call",
            first.context,
            SpanKind.CLIENT,
            {_MODEL: model, _BATCH_ROWS: rows, _BATCH_LENGTH: length},
            [Link(request.span_context) for request in traced],
            start_time=first.wall_ns(started),
        )
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, set_span_in_context(span))
        try:
            yield headers
        except BaseException as error:
            span.set_attribute(ERROR_TYPE, _error_type(error))
            span.set_status(StatusCode.ERROR)
            raise
        finally:
            ended = time.perf_counter()
            for request in traced:
                request.stage("infer", started, ended)
                request.served_by(span)
            span.end(first.wall_ns(ended))

    def close(self) -> None:
        """Send what is left, for a few seconds at most: no collector holds up a gateway that stops."""
        flush = threading.Thread(target=self._provider.shutdown, name="tracing-flush", daemon=True)
        flush.start()
        flush.join(_FLUSH_S)


def open_tracing() -> Tracing:
    """Return what sends spans where the OTEL_* variables say.

    Raises:
        StartupError: one of them is nonsense.
    """
    try:
        return Tracing(OTLPSpanExporter())
    except ValueError as error:
        raise StartupError(f"OpenTelemetry does not take its OTEL_* variables: {error}") from error


def _resource() -> Resource:
    """Return what this process calls itself; the variables may say something else."""
    ours: Attributes = {
        SERVICE_NAME: "embedding-gateway",
        SERVICE_VERSION: __version__,
        "process.pid": os.getpid(),
    }
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def _error_type(error: BaseException) -> str:
    return (error.code or error.type) if isinstance(error, GatewayError) else type(error).__qualname__
