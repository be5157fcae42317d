"""The gateway's Prometheus metrics, built in one place; every series is there, at 0, from the start.

One Metrics belongs to one app: nothing is registered globally. Only this file imports prometheus_client.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.types import EmbeddingResult

STAGES = ("tokenize", "queue", "infer", "pool", "render")

# 0.5 ms to 16 s, doubling: a text of a few tokens on a GPU, up to a request at its deadline.
_SECONDS = tuple(0.0005 * 2**i for i in range(16))
# Powers of two up to the largest batch of any engine that we know of.
_ROWS = tuple(float(2**i) for i in range(11))


class Metrics:
    """All counters, gauges and histograms.

    Args:
        models: public names of the served models; the only values of the label `model`.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, models: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "HTTP requests by route and status", "route", "status")
        self._request_seconds = self._histogram(
            "request_duration_seconds", "seconds from the first byte of a request to the last of its answer", _SECONDS,
            "route",
        )  # fmt: skip
        self._in_flight = Gauge("gateway_requests_in_flight", "HTTP requests being answered", registry=self.registry)
        self._stage_seconds = self._histogram(
            "stage_duration_seconds", "seconds that an embeddings request spent in a stage", _SECONDS, "model", "stage"
        )
        self._inputs = self._counter("inputs", "inputs embedded", "model")
        self._tokens = self._counter("tokens", "tokens sent to the engine, by kind: real or padding", "model", "kind")
        self._truncated = self._counter("truncated_inputs", "inputs that were cut to fit", "model")
        self._cancelled = self._counter("cancelled_requests", "requests whose caller went away", "model")
        self._bad_outputs = self._counter("bad_outputs", "engine answers with NaN, infinity or a wrong shape", "model")
        self._batch_rows = self._histogram("batch_rows", "rows of one engine call", _ROWS, "model")
        self._queued_inputs = self._gauge("queued_inputs", "inputs waiting for an engine slot", "model")
        self._queued_tokens = self._gauge("queued_tokens", "tokens waiting for an engine slot", "model")
        self._busy_slots = self._gauge("busy_slots", "engine calls under way", "model")
        self._model_ready = self._gauge("model_ready", "1 if the model was ready when last asked", "model")
        info = Gauge("gateway_build_info", "1, labelled with the version", ["version"], registry=self.registry)
        info.labels(version("embedding-gateway")).set(1)
        for model in models:
            self._create_series(model)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"gateway_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"gateway_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"gateway_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _create_series(self, model: str) -> None:
        for stage in STAGES:
            self._stage_seconds.labels(model, stage)
        for kind in ("real", "padding"):
            self._tokens.labels(model, kind)
        for metric in (
            self._inputs, self._truncated, self._cancelled, self._bad_outputs, self._batch_rows, self._queued_inputs,
            self._queued_tokens, self._busy_slots, self._model_ready,
        ):  # fmt: skip
            metric.labels(model)

    @contextmanager
    def request(self, route: str) -> Iterator["RequestOutcome"]:
        """Count one HTTP request while the block runs; the block sets `outcome.status`."""
        outcome = RequestOutcome()
        started = time.perf_counter()
        self._in_flight.inc()
        try:
            yield outcome
        finally:
            self._in_flight.dec()
            self._requests.labels(route, str(outcome.status)).inc()
            self._request_seconds.labels(route).observe(time.perf_counter() - started)

    def embedded(self, model: str, result: EmbeddingResult, render_s: float) -> None:
        """Count one embeddings request that was answered."""
        self._inputs.labels(model).inc(len(result.embeddings))
        self._truncated.labels(model).inc(result.truncated_inputs)
        timings = result.timings
        seconds = (timings.tokenize_s, timings.queue_s, timings.infer_s, timings.pool_s, render_s)
        for stage, stage_s in zip(STAGES, seconds, strict=True):
            self._stage_seconds.labels(model, stage).observe(stage_s)

    def cancelled(self, model: str) -> None:
        """Count one request whose caller went away."""
        self._cancelled.labels(model).inc()

    def bad_output(self, model: str) -> None:
        """Count one engine answer that no caller may see."""
        self._bad_outputs.labels(model).inc()

    def batch(self, model: str, *, rows: int, real_tokens: int, padded_tokens: int) -> None:
        """Count one engine call of `rows` rows, `padded_tokens` = rows x padded length."""
        self._batch_rows.labels(model).observe(rows)
        self._tokens.labels(model, "real").inc(real_tokens)
        self._tokens.labels(model, "padding").inc(padded_tokens - real_tokens)

    def queue(self, model: str, *, inputs: int, tokens: int, busy_slots: int) -> None:
        """Show what waits and how many engine calls run."""
        self._queued_inputs.labels(model).set(inputs)
        self._queued_tokens.labels(model).set(tokens)
        self._busy_slots.labels(model).set(busy_slots)

    def model_ready(self, model: str, ready: bool) -> None:
        """Show whether a model can answer."""
        self._model_ready.labels(model).set(ready)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class RequestOutcome:
    """The status that a request ended with; 499 until one is set, as when its caller has gone."""

    __slots__ = ("status",)

    def __init__(self) -> None:
        self.status = 499
