"""Decides which encodings share an engine call, and when. Called by embedder; sees only the Engine protocol.

Triton merges neighbours of equal shape only, so the gateway forms the batches, from all waiting requests, whenever one
of the engine's slots is free: see batch_queue for which entries share one. On an idle engine a lone request leaves at
once; while another call is under way, a batch that is not full waits for company, up to a bounded delay.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gateway.batch_queue import BatchQueue
from gateway.batching import most_rows, pad
from gateway.call_limit import CallLimit
from gateway.drain_rate import DrainRate
from gateway.engine_cost import EngineCost
from gateway.errors import EngineTimeout, EngineUnavailable, GatewayError
from gateway.metrics import Metrics
from gateway.pooling import pool
from gateway.types import Batch, Encoding, Engine, Float32Array, Int32Array, OutputKind, Timings
from gateway.virtual_time import VirtualTime, parts

if TYPE_CHECKING:
    from gateway.tracing import RequestTrace, Tracing

_INLINE_POOLING_VALUES = 65_536
"""Token embeddings of up to this many values are pooled on the event loop: a thread would take longer."""

_TOO_LATE = "The request's deadline passed before the engine had answered."
_PATIENCE_CALLS = 4
_LONGEST_PATIENCE_S = 0.05
"""For how many calls' time, and how long at most, the entry whose turn it is may be passed over for batches that waste
less. Where calls take long it is not worth more: it is not their number that costs the time there."""

LONGEST_CALL_S = 0.25
"""While requests of several inputs wait, calls are cut to what takes about so long, as whoever comes meanwhile waits
for the end of one. A GPU's take a tenth of it; a CPU runs small batches as fast as large ones (measured: the same
processor time for each text). Single inputs of many callers share a call whole, as each waits for just one."""


@dataclass(eq=False, slots=True)
class _Job:
    """One caller's encodings on their way through the engine: `waiting` in queues, `missing` in `embeddings`."""

    embeddings: Float32Array
    parts: int
    done: asyncio.Future[None]
    deadline: float
    submitted: float
    trace: "RequestTrace | None"
    missing: int
    waiting: int
    abandoned: bool = False
    calls: set["_Call"] = field(default_factory=set)
    queue_s: float = 0.0
    infer_s: float = 0.0
    pool_s: float = 0.0


@dataclass(eq=False, slots=True)
class _Entry:
    """One encoding waiting in a queue."""

    job: _Job
    index: int
    input_ids: Int32Array


@dataclass(eq=False, slots=True)
class _Call:
    """One engine call under way; `left_others` if more was waiting than it could take."""

    entries: list[_Entry]
    padded_length: int
    left_others: bool
    jobs: set[_Job] = field(init=False)
    tokens: int = field(init=False)
    task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = {entry.job for entry in self.entries}
        self.tokens = sum(len(entry.input_ids) for entry in self.entries)


class Scheduler:
    """Runs one model's encodings through its engine in length-aware batches.

    Args:
        engine: the model on Triton.
        slots: engine calls that may be under way at once.
        max_batch_tokens: most tokens of one call, padding included.
        max_delay_s: how long a batch that is not full may wait while the engine is busy with another.
        executor: pools large outputs.
        metrics: told of each call and of the queue.
        model: the label of those metrics.
        tracing: told of each call; None if it is off.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        slots: int,
        max_batch_tokens: int,
        max_delay_s: float,
        executor: Executor,
        metrics: Metrics,
        model: str,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._engine = engine
        self._spec = spec = engine.spec
        self._slots = slots
        self._executor = executor
        self._metrics = metrics
        self._model = model
        self._tracing = tracing
        metrics.slots(model, slots)
        rows = [most_rows(length, spec.max_batch_size, max_batch_tokens) for length in spec.length_buckets]
        self._queue = BatchQueue[_Entry](spec.length_buckets, rows, max_delay_s)
        self._cost = EngineCost()
        self._drain = DrainRate()
        self._call_limit = CallLimit(LONGEST_CALL_S)
        self._virtual_time = VirtualTime()
        self._waiting_jobs: set[_Job] = set()
        self._calls: set[_Call] = set()
        self._dispatch_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def queued_inputs(self) -> int:
        """Inputs that wait for an engine slot."""
        return self._queue.inputs

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for an engine slot."""
        return self._queue.tokens

    @property
    def expected_wait_s(self) -> float:
        """How long the engine will take for what runs and waits, by its measured rate; 0 before it was measured."""
        rate = self._drain.tokens_per_s
        return (self._queue.tokens + sum(call.tokens for call in self._calls)) / rate if rate else 0.0

    async def run(
        self, encodings: Sequence[Encoding], deadline: float, trace: "RequestTrace | None" = None
    ) -> tuple[Float32Array, Timings]:
        """Run the encodings through the engine.

        Args:
            encodings: N tokenized inputs.
            deadline: when to give up, in the event loop's time.
            trace: told of the stages; None if the request is not traced.

        Returns:
            float32 [N,H] in input order, not normalised, owned by the caller; and where the time went.

        Raises:
            EngineTimeout: the deadline passed.
            GatewayError: an engine call failed; the job's other entries are dropped.
        """
        if self._closed:
            raise EngineUnavailable("The gateway is stopping.")
        loop = asyncio.get_running_loop()
        count = len(encodings)
        embeddings = np.empty((count, self._spec.hidden_size), np.float32)
        job = _Job(
            embeddings,
            parts(count),
            loop.create_future(),
            deadline,
            time.perf_counter(),
            trace,
            missing=count,
            waiting=count,
        )
        self._enqueue(job, encodings)
        try:
            async with asyncio.timeout_at(deadline):
                await job.done
        except TimeoutError:
            raise EngineTimeout(_TOO_LATE) from None
        finally:
            if job.missing:
                self._abandon(job)
        return job.embeddings, Timings(queue_s=job.queue_s, infer_s=job.infer_s, pool_s=job.pool_s)

    def resize(self, slots: int) -> None:
        """Let that many engine calls be under way from now on; those that are more than that go on."""
        self._slots = slots
        self._metrics.slots(self._model, slots)
        self._schedule_dispatch()

    def drop(self, error: GatewayError) -> None:
        """Fail all jobs with that error, and cancel all calls."""
        self._queue.drain()
        waiting, self._waiting_jobs = self._waiting_jobs, set()
        self._set_timer()
        for job in waiting.union(*(call.jobs for call in self._calls)):
            _fail(job, error)
        for call in self._calls:
            call.task.cancel()

    async def close(self) -> None:
        """Take no more, and drop what there is."""
        self._closed = True
        tasks = [call.task for call in self._calls]
        self.drop(EngineUnavailable("The gateway is stopping."))
        await asyncio.gather(*tasks, return_exceptions=True)

    def _enqueue(self, job: _Job, encodings: Sequence[Encoding]) -> None:
        self._waiting_jobs.add(job)
        lengths = [len(encoding.input_ids) for encoding in encodings]
        for index, turn in enumerate(self._virtual_time.turns(lengths)):
            entry = _Entry(job, index, encodings[index].input_ids)
            self._queue.push(entry, lengths[index], arrival=job.submitted, turn=turn)
        self._schedule_dispatch()

    def _schedule_dispatch(self) -> None:
        # Not at once: requests that arrive in the same turn of the event loop share a batch.
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        while len(self._calls) < self._slots and not self._closed and (call := self._next_call()):
            self._start(call)
        self._show_queue()

    def _start(self, call: _Call) -> None:
        self._calls.add(call)
        for job in call.jobs:
            job.calls.add(call)
        call.task = asyncio.create_task(self._run_call(call))
        # A callback, not a finally: a task that is cancelled before its first step never enters its try block.
        call.task.add_done_callback(lambda _: self._end(call))

    def _end(self, call: _Call) -> None:
        self._calls.discard(call)
        for job in call.jobs:
            job.calls.discard(call)
        self._dispatch()

    def _next_call(self) -> _Call | None:
        """Take the next batch's entries off the queue, if there is one worth sending now."""
        all_parts = sum(job.parts for job in self._waiting_jobs)
        # One part each: requests of one input only. None of them is long, so whole calls serve all of them best.
        are_single = all_parts == len(self._waiting_jobs)
        entries, padded_length = self._queue.pop_batch(
            time.perf_counter(),
            idle=not self._calls,
            overhead_tokens=self._cost.overhead_tokens,
            most_tokens=math.inf if are_single else self._call_limit.tokens,
            patience_s=patience_s(self._cost),
        )
        if not entries:
            self._set_timer()
            return None
        call = _Call(entries, padded_length, left_others=self._queue.inputs > 0)
        self._virtual_time.advance(call.tokens, all_parts)
        for entry in entries:
            entry.job.waiting -= 1
        self._waiting_jobs.difference_update([job for job in call.jobs if not job.waiting])
        return call

    def _set_timer(self) -> None:
        """Dispatch again when the first batch that is not full has waited long enough."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        due = self._queue.next_due()
        if due is not None:
            delay_s = due - time.perf_counter()
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._dispatch)

    async def _run_call(self, call: _Call) -> None:
        try:
            await self._infer_and_pool(call)
        except Exception as error:  # noqa: BLE001 - whatever it is, each waiting caller gets it
            for job in call.jobs:
                _fail(job, error)

    async def _infer_and_pool(self, call: _Call) -> None:
        jobs = call.jobs
        remaining_s = max(job.deadline for job in jobs) - asyncio.get_running_loop().time()
        if remaining_s <= 0:
            raise EngineTimeout(_TOO_LATE)
        batch = pad([entry.input_ids for entry in call.entries], call.padded_length, self._spec.pad_id)
        self._metrics.batch(
            self._model, rows=len(call.entries), real_tokens=call.tokens, padded_tokens=batch.input_ids.size
        )
        started = time.perf_counter()
        output = await self._infer(call, batch, remaining_s)
        inferred = time.perf_counter()
        self._cost.observe(batch.input_ids.size, inferred - started)
        self._call_limit.observe(batch.input_ids.size, inferred - started, len(self._calls))
        self._drain.completed(call.tokens, started, inferred, calls=len(self._calls), left_others=call.left_others)
        vectors = await self._pool(output, batch)
        pooled = time.perf_counter()
        for job in jobs:
            job.queue_s = max(job.queue_s, started - job.submitted)
            job.infer_s = max(job.infer_s, inferred - started)
            job.pool_s = max(job.pool_s, pooled - inferred)
            if job.trace is not None:
                job.trace.stage("pool", inferred, pooled)
        _scatter(call.entries, vectors)

    async def _infer(self, call: _Call, batch: Batch, timeout_s: float) -> Float32Array:
        if self._tracing is None:
            return await self._engine.infer(batch, timeout_s)
        now = time.perf_counter()
        for job in call.jobs:
            if job.trace is not None:
                job.trace.stage("queue", job.submitted, now)
        rows, length = batch.input_ids.shape
        traces = (entry.job.trace for entry in call.entries)
        with self._tracing.call(traces, model=self._model, rows=rows, length=length) as headers:
            return await self._engine.infer(batch, timeout_s, headers)

    async def _pool(self, output: Float32Array, batch: Batch) -> Float32Array:
        if self._spec.output_kind is OutputKind.SENTENCE_EMBEDDING:
            return output
        work = partial(pool, output, batch.attention_mask, self._spec.pooling)
        if output.size <= _INLINE_POOLING_VALUES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _abandon(self, job: _Job) -> None:
        """Drop a job whose caller has gone: its waiting entries, and calls that only it waits for."""
        job.abandoned = True
        self._waiting_jobs.discard(job)
        if job.waiting:
            if job.trace is not None:
                job.trace.stage("queue", job.submitted, time.perf_counter())
            self._queue.discard(lambda entry: entry.job is job)
        for call in job.calls:
            if all(other.abandoned for other in call.jobs):
                call.task.cancel()
        self._show_queue()

    def _show_queue(self) -> None:
        self._metrics.queue(
            self._model,
            inputs=self.queued_inputs,
            tokens=self.queued_tokens,
            expected_s=self.expected_wait_s,
            oldest=self._queue.oldest_arrival,
            busy_slots=len(self._calls),
        )


def patience_s(cost: EngineCost) -> float:
    """Return for how long the entry whose turn it is may be passed over."""
    return min(_PATIENCE_CALLS * cost.call_s, _LONGEST_PATIENCE_S)


def _scatter(entries: Iterable[_Entry], vectors: Float32Array) -> None:
    """Write each row where its caller expects it, and wake callers that have all of theirs."""
    for entry, vector in zip(entries, vectors, strict=True):
        job = entry.job
        job.embeddings[entry.index] = vector
        job.missing -= 1
        if not job.missing and not job.done.done():
            job.done.set_result(None)


def _fail(job: _Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
