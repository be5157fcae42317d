"""Spans of requests, stages and engine calls, kept in memory; over OTLP in tests/integration/test_tracing.py."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.errors import EngineRejected, EngineTimeout, StartupError
from gateway.metrics import Metrics
from gateway.scheduler import Scheduler
from gateway.tracing import RequestTrace, Tracing, open_tracing
from tests.fakes import FakeEngine, encoding


class Traced:
    """A scheduler on a fake engine, and the spans of what it runs."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(self.exporter)
        self.engine = FakeEngine()
        self.scheduler = Scheduler(
            self.engine,
            slots=1,
            max_batch_tokens=10_000,
            max_delay_s=0.005,
            executor=executor,
            metrics=Metrics(["m"]),
            model="m",
            tracing=self.tracing,
        )

    def request(self) -> RequestTrace:
        trace = self.tracing.request(method="POST", route="/v1/embeddings", scheme="http", headers={})
        assert trace is not None
        return trace

    async def run(self, trace: RequestTrace | None, timeout_s: float = 5.0) -> None:
        await self.scheduler.run([encoding(1, 2, 3)], asyncio.get_running_loop().time() + timeout_s, trace)

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return all that ended of that name."""
        self.tracing.close()
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traced() -> Iterator[Traced]:
    with ThreadPoolExecutor(1) as executor:
        traced = Traced(executor)
        yield traced
        traced.tracing.close()


def end(trace: RequestTrace, status: int = 200, error: str | None = None) -> None:
    trace.end(status=status, error=error, request_id="r", model="m", inputs=1, tokens=3)


async def test_the_engine_is_told_of_the_calls_span(traced: Traced) -> None:
    trace = traced.request()
    await traced.run(trace)
    end(trace)
    (call,) = traced.spans("engine call")
    assert call.context is not None
    flags = f"{call.context.trace_flags:02x}"
    assert traced.engine.headers == [{"traceparent": f"00-{trace.trace_id}-{call.context.span_id:016x}-{flags}"}]


async def test_who_is_not_traced_leaves_no_span_but_shares_the_call(traced: Traced) -> None:
    await traced.run(None)
    trace = traced.request()
    await asyncio.gather(traced.run(None), traced.run(trace))
    end(trace)
    (call,) = traced.spans("engine call")
    assert traced.engine.headers[0] is None
    assert call.attributes is not None
    assert call.attributes["gateway.batch.rows"] == 2
    assert len(call.links) == 1


async def test_a_call_that_fails_says_why(traced: Traced) -> None:
    traced.engine.error = EngineRejected("The engine refused the batch.")
    trace = traced.request()
    with pytest.raises(EngineRejected):
        await traced.run(trace)
    end(trace, 500, "engine_rejected")
    for name in ("engine call", "POST /v1/embeddings"):
        (span,) = traced.spans(name)
        assert span.attributes is not None
        assert span.attributes["error.type"] == "engine_rejected"
        assert not span.status.is_ok
        assert not span.events  # where a message or a traceback would be
    assert traced.spans("infer")


async def test_who_gives_up_while_it_waits_has_waited(traced: Traced) -> None:
    traced.engine.gate = asyncio.Event()
    first = asyncio.create_task(traced.run(None))
    await asyncio.sleep(0.01)
    trace = traced.request()
    with pytest.raises(EngineTimeout):
        await traced.run(trace, timeout_s=0.05)
    end(trace, 504, "engine_timeout")
    traced.engine.gate.set()
    await first
    (queue,) = traced.spans("queue")
    assert queue.end_time is not None
    assert queue.start_time is not None
    assert queue.end_time - queue.start_time >= 40_000_000
    assert not traced.spans("infer")


async def test_a_call_that_nobody_waits_for_any_more_is_cancelled(traced: Traced) -> None:
    traced.engine.gate = asyncio.Event()
    trace = traced.request()
    running = asyncio.create_task(traced.run(trace))
    await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.sleep(0.02)
    end(trace, 499)
    (call,) = traced.spans("engine call")
    assert call.attributes is not None
    assert call.attributes["error.type"] == "CancelledError"


def test_a_collector_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Event()

    class HangingExporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            release.wait()
            return SpanExportResult.SUCCESS

    monkeypatch.setattr("gateway.tracing._FLUSH_S", 0.05)
    tracing = Tracing(HangingExporter())
    trace = tracing.request(method="GET", route="/", scheme="http", headers={})
    assert trace is not None
    end(trace)
    tracing.close()
    assert not release.is_set()
    release.set()


def test_nonsense_in_the_variables_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(StartupError, match="OTEL_"):
        open_tracing()


def test_stages_of_several_parts_last_from_the_first_to_the_last(traced: Traced) -> None:
    trace = traced.request()
    now = time.perf_counter()
    for started, ended in ((2.0, 3.0), (1.0, 2.5), (2.5, 2.75)):
        trace.stage("pool", now + started, now + ended)
    end(trace)
    (pool,) = traced.spans("pool")
    assert (pool.start_time, pool.end_time) == (trace.wall_ns(now + 1.0), trace.wall_ns(now + 3.0))
