"""A stand-in for an OpenTelemetry collector, which cannot be had here: takes OTLP over HTTP and keeps the spans.

The messages are OTLP's own, decoded with the protobuf classes of opentelemetry-proto; Triton sends them as JSON.
"""

import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage


@dataclass(frozen=True)
class Span:
    """One span as it was received; ids are hexadecimal, times Unix nanoseconds, `links` the ids of spans."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    trace_state: str
    kind: str
    started: int
    ended: int
    is_error: bool
    attributes: dict[str, Any]
    links: list[str]
    resource: dict[str, Any]


@dataclass
class OtlpReceiver:
    """What listens.

    Attributes:
        url: the endpoint, without `/v1/traces`.
        paths: of all requests.
        bodies: of all requests.
        spans: all that came.
        hang: while it is set, requests are not answered.
    """

    url: str = ""
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    hang: Event = field(default_factory=Event)

    def wait_for(self, is_there: Callable[[list[Span]], object], timeout_s: float = 30) -> None:
        """Wait until the spans are as they should be."""
        deadline = time.monotonic() + timeout_s
        while not is_there(self.spans):
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.02)

    def take(self, path: str, body: bytes, *, is_json: bool) -> None:
        """Keep what a request brought."""
        self.paths.append(path)
        self.bodies.append(body)
        read = json_format.Parse if is_json else lambda data, message: type(message).FromString(data)
        for of_resource in read(body, ExportTraceServiceRequest()).resource_spans:
            resource = _attributes(of_resource.resource)
            for scope in of_resource.scope_spans:
                self.spans += [
                    _read_span(span, resource, _hex_in_json if is_json else bytes.hex) for span in scope.spans
                ]


@contextmanager
def run_otlp_receiver() -> Iterator[OtlpReceiver]:
    """Listen on a free port of the loopback interface."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            while receiver.hang.is_set():
                time.sleep(0.02)
            receiver.take(self.path, body, is_json=self.headers["content-type"] == "application/json")
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.hang.clear()
            server.shutdown()
            thread.join()


def _hex_in_json(id_: bytes) -> str:
    """Undo what the protobuf library made of an id: OTLP's JSON has them in hexadecimal, protobuf's in base 64."""
    return b64encode(id_).decode()


def _read_span(span: SpanMessage, resource: dict[str, Any], to_hex: Callable[[bytes], str]) -> Span:
    return Span(
        name=span.name,
        trace_id=to_hex(span.trace_id),
        span_id=to_hex(span.span_id),
        parent_id=to_hex(span.parent_span_id),
        trace_state=span.trace_state,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        started=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes=_attributes(span),
        links=[to_hex(link.span_id) for link in span.links],
        resource=resource,
    )


def _attributes(message: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in message.attributes}
