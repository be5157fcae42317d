"""The gateway's Prometheus metrics, built in one place; every series is there, at 0, from the start.

One Metrics belongs to one app: nothing is registered globally. Only this file imports prometheus_client. Worker
processes write their values to files in one folder, and whichever is asked shows the sums.
"""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from gateway import __version__
from gateway.errors import ExceededLimit, GatewayError, StartupError
from gateway.types import EmbeddingResult

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the workers' folder to prometheus_client, when it is imported."""

STAGES = ("tokenize", "queue", "infer", "pool", "render")

# 0.5 ms to 16 s, doubling: a text of a few tokens on a GPU, up to a request at its deadline.
_SECONDS = tuple(0.0005 * 2**i for i in range(16))
_EMBEDDINGS_ROUTE = "/v1/embeddings"
_GONE = 499
"""Status of a request whose caller left before the answer; nobody was sent it."""

# Powers of two up to the largest batch of any engine that we know of.
_ROWS = tuple(float(2**i) for i in range(11))


class Metrics:
    """All counters, gauges and histograms.

    Args:
        models: public names of the served models; the only values of the label `model`.
        folder: where all workers' values are; None if there is one process only.

    Raises:
        StartupError: prometheus_client was told to share values, and `folder` says not to.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, models: Iterable[str] = (), folder: Path | None = None) -> None:
        if folder is None and values.ValueClass is not values.MutexValue:
            raise StartupError(f"unset {MULTIPROCESS_VARIABLE}: the gateway makes that folder itself, for its workers")
        self.registry = CollectorRegistry()
        self._folder = folder
        # Looking a series up by its labels takes longer than counting in it, a dozen times for each request.
        self._series = lru_cache(maxsize=None)(_labelled)
        self._requests = self._counter("requests", "HTTP requests by route and status", "route", "status")
        self._request_seconds = self._histogram(
            "request_duration_seconds", "seconds from the first byte of a request to the last of its answer", _SECONDS,
            "route",
        )  # fmt: skip
        self._errors = self._counter("request_errors", "HTTP requests answered with an error, by its code", "code")
        self._refused = self._counter("refused_requests", "HTTP requests refused with 429, by the limit", "limit")
        self._in_flight = self._gauge("requests_in_flight", "HTTP requests being answered")
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
        self._queue_seconds = self._gauge(
            "queue_expected_seconds", "seconds that the engine will take for what waits", "model", of_workers="livemax"
        )
        self._oldest = self._gauge(
            "queue_oldest_timestamp_seconds", "Unix time at which the oldest waiting input came; +Inf if none waits",
            "model", of_workers="livemin",
        )  # fmt: skip
        self._busy_slots = self._gauge("busy_slots", "engine calls under way", "model")
        self._slots = self._gauge("slots", "engine calls that may be under way", "model")
        self._shared_memory_bytes = self._gauge(
            "shared_memory_bytes", "shared memory that outputs travel through; 0 where they travel over gRPC", "model"
        )
        self._model_ready = self._gauge(
            "model_ready", "1 if the model was ready when last asked", "model", of_workers="livemin"
        )
        self._endpoint_up = self._gauge(
            "triton_endpoint_up", "1 if this one of several Triton endpoints is used for the model",
            "model", "endpoint", of_workers="livemin",
        )  # fmt: skip
        self._endpoint_calls = self._counter(
            "triton_endpoint_calls", "engine calls sent to this one of several Triton endpoints", "model", "endpoint"
        )
        self._endpoint_lost_calls = self._counter(
            "triton_endpoint_lost_calls", "engine calls lost there, and made again on another one if there was one",
            "model", "endpoint",
        )  # fmt: skip
        info = self._gauge("build_info", "1, labelled with the version", "version", of_workers="livemax")
        info.labels(__version__).set(1)
        for code, status in _outcomes():
            self._requests.labels(_EMBEDDINGS_ROUTE, str(status))
            if code:
                self._errors.labels(code)
        for limit in ExceededLimit:
            self._refused.labels(limit)
        for model in models:
            self._create_series(model)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"gateway_{name}", text, labels, registry=self.registry)

    def _gauge(
        self, name: str, text: str, *labels: str, of_workers: Literal["livesum", "livemin", "livemax"] = "livesum"
    ) -> Gauge:
        return Gauge(f"gateway_{name}", text, labels, registry=self.registry, multiprocess_mode=of_workers)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"gateway_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _create_series(self, model: str) -> None:
        for stage in STAGES:
            self._stage_seconds.labels(model, stage)
        for kind in ("real", "padding"):
            self._tokens.labels(model, kind)
        for metric in (
            self._inputs, self._truncated, self._cancelled, self._bad_outputs, self._batch_rows, self._queued_inputs,
            self._queued_tokens, self._queue_seconds, self._busy_slots, self._slots, self._shared_memory_bytes,
            self._model_ready,
        ):  # fmt: skip
            metric.labels(model)
        self._oldest.labels(model).set(math.inf)

    @contextmanager
    def request(self, route: str) -> Iterator["RequestOutcome"]:
        """Count one HTTP request while the block runs; the block sets the outcome's attributes."""
        outcome = RequestOutcome()
        started = time.perf_counter()
        self._in_flight.inc()
        try:
            yield outcome
        finally:
            self._in_flight.dec()
            self._series(self._requests, route, str(outcome.status)).inc()
            self._series(self._request_seconds, route).observe(time.perf_counter() - started)
            if outcome.error is not None:
                self._series(self._errors, outcome.error).inc()
            if outcome.limit is not None:
                self._series(self._refused, outcome.limit).inc()

    def embedded(self, model: str, result: EmbeddingResult, render_s: float) -> None:
        """Count one embeddings request that was answered."""
        self._series(self._inputs, model).inc(len(result.embeddings))
        self._series(self._truncated, model).inc(result.truncated_inputs)
        timings = result.timings
        seconds = (timings.tokenize_s, timings.queue_s, timings.infer_s, timings.pool_s, render_s)
        for stage, stage_s in zip(STAGES, seconds, strict=True):
            self._series(self._stage_seconds, model, stage).observe(stage_s)

    def cancelled(self, model: str) -> None:
        """Count one request whose caller went away."""
        self._series(self._cancelled, model).inc()

    def bad_output(self, model: str) -> None:
        """Count one engine answer that no caller may see."""
        self._series(self._bad_outputs, model).inc()

    def batch(self, model: str, *, rows: int, real_tokens: int, padded_tokens: int) -> None:
        """Count one engine call of `rows` rows, `padded_tokens` = rows x padded length."""
        self._series(self._batch_rows, model).observe(rows)
        self._series(self._tokens, model, "real").inc(real_tokens)
        self._series(self._tokens, model, "padding").inc(padded_tokens - real_tokens)

    def queue(
        self, model: str, *, inputs: int, tokens: int, expected_s: float, oldest: float | None, busy_slots: int
    ) -> None:
        """Show what waits and how many engine calls run.

        Args:
            model: label.
            inputs: number of waiting inputs.
            tokens: number of their tokens.
            expected_s: how long the engine will take for them.
            oldest: when the one that has waited longest came, on time.perf_counter's clock; None if none waits.
            busy_slots: number of engine calls under way.
        """
        self._series(self._queued_inputs, model).set(inputs)
        self._series(self._queued_tokens, model).set(tokens)
        self._series(self._queue_seconds, model).set(expected_s)
        came = math.inf if oldest is None else time.time() - (time.perf_counter() - oldest)
        self._series(self._oldest, model).set(came)
        self._series(self._busy_slots, model).set(busy_slots)

    def slots(self, model: str, slots: int) -> None:
        """Show how many engine calls may run at once."""
        self._slots.labels(model).set(slots)

    def shared_memory(self, model: str, byte_size: int) -> None:
        """Show how much shared memory there is for the engine's outputs."""
        self._shared_memory_bytes.labels(model).set(byte_size)

    def model_ready(self, model: str, ready: bool) -> None:
        """Show whether a model can answer."""
        self._model_ready.labels(model).set(ready)

    def endpoint_up(self, model: str, endpoint: str, up: bool) -> None:
        """Show whether one of several Triton endpoints is used for the model; its counters are there from then on."""
        self._endpoint_up.labels(model, endpoint).set(up)
        self._endpoint_calls.labels(model, endpoint)
        self._endpoint_lost_calls.labels(model, endpoint)

    def endpoint_call(self, model: str, endpoint: str) -> None:
        """Count one engine call sent to that endpoint."""
        self._endpoint_calls.labels(model, endpoint).inc()

    def endpoint_lost_call(self, model: str, endpoint: str) -> None:
        """Count one engine call that was lost there."""
        self._endpoint_lost_calls.labels(model, endpoint).inc()

    def forget_endpoint(self, model: str, endpoint: str) -> None:
        """Show nothing more of an endpoint that is gone. Of workers, which cannot remove a series, it shows NaN."""
        if self._folder is not None:
            self._endpoint_up.labels(model, endpoint).set(math.nan)
            return
        for metric in (self._endpoint_up, self._endpoint_calls, self._endpoint_lost_calls):
            metric.remove(model, endpoint)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        if self._folder is None:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        registry.register(_WorkersCollector(self._folder))
        return generate_latest(registry)


class _WorkersCollector(MultiProcessCollector):
    """Reads all workers' files but those that were only just made: still empty, they would end the reading."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None, str(folder))  # type: ignore[no-untyped-call]
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """Return the sums."""
        files = [str(path) for path in self._folder.glob("*.db") if _is_written(path)]
        metrics: Iterable[Metric] = self.merge(files)  # type: ignore[no-untyped-call]
        return metrics


def _is_written(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:  # a dead worker's, removed meanwhile
        return False


class RequestOutcome:
    """How a request ended.

    Attributes:
        status: 499 until one is set, as when its caller has gone.
        error: the code of the error it was answered with, or None.
        limit: the limit that it was refused for, or None.
    """

    __slots__ = ("error", "limit", "status")

    def __init__(self) -> None:
        self.status = _GONE
        self.error: str | None = None
        self.limit: ExceededLimit | None = None


def _labelled(metric: Counter | Gauge | Histogram, *labels: str) -> Any:
    return metric.labels(*labels)


def _outcomes() -> Iterator[tuple[str | None, int]]:
    """Yield every error code with its status, and what has a status but no code."""
    yield from ((None, 200), (None, _GONE))
    classes = [GatewayError]
    for each in classes:
        classes += each.__subclasses__()
        yield each.code or each.type, each.status


def forget_process(pid: int, folder: Path) -> None:
    """Take a dead worker's gauges out of the sums; what it counted stays."""
    mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
