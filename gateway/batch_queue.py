"""Waiting encodings by length bucket, and which of them share the next engine call.

Called by scheduler; no clock and no I/O of its own, so that a simulation can run it.

Each entry has a turn, given out by the caller (see virtual_time), and the earliest goes first. It is passed over for
at most the caller's patience since it came; until then the batch that wastes least is preferred.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from gateway.batching import length_bucket

E = TypeVar("E")


class _Waiting(NamedTuple, Generic[E]):
    """An entry in its heap; `number` keeps those of equal turn in order, and entries from being compared."""

    turn: float
    number: int
    arrival: float
    length: int
    entry: E


@dataclass(slots=True)
class _Bucket(Generic[E]):
    """The entries of one length bucket, a heap by turn; `tokens` is the sum of their lengths."""

    padded_length: int
    most_rows: int
    entries: list["_Waiting[E]"] = field(default_factory=list)
    tokens: int = 0

    @property
    def first(self) -> "_Waiting[E]":
        return self.entries[0]

    @property
    def mean_length(self) -> float:
        return self.tokens / len(self.entries)

    def most_rows_within(self, most_tokens: float) -> int:
        return max(1, int(min(self.most_rows, most_tokens / self.padded_length)))

    def pop(self) -> E:
        waiting = heapq.heappop(self.entries)
        self.tokens -= waiting.length
        return waiting.entry


@dataclass(frozen=True, slots=True)
class _Plan:
    """A batch that could be sent: rows from each bucket up to `bucket`, padded to its length.

    Attributes:
        usefulness: expected real tokens for each token's worth of engine time.
    """

    bucket: int
    rows: list[int]
    usefulness: float


class BatchQueue(Generic[E]):
    """Entries of type E, waiting for an engine slot.

    Args:
        length_buckets: ascending padded lengths.
        most_rows: most rows of a batch, for each bucket.
        max_delay_s: how long a batch that is not full waits while the engine is busy.
    """

    def __init__(self, length_buckets: Sequence[int], most_rows: Sequence[int], max_delay_s: float) -> None:
        self._lengths = tuple(length_buckets)
        self._buckets = [_Bucket[E](length, rows) for length, rows in zip(length_buckets, most_rows, strict=True)]
        self._max_delay_s = max_delay_s
        self._numbers = count()
        self.inputs = 0
        self.tokens = 0

    def push(self, entry: E, length: int, *, arrival: float, turn: float) -> None:
        """Add an entry of `length` tokens; `arrival` is on the caller's clock, `turn` on any scale."""
        bucket = self._buckets[length_bucket(length, self._lengths)]
        heapq.heappush(bucket.entries, _Waiting(turn, next(self._numbers), arrival, length, entry))
        bucket.tokens += length
        self.inputs += 1
        self.tokens += length

    def pop_batch(
        self, now: float, *, idle: bool, overhead_tokens: float, most_tokens: float, patience_s: float
    ) -> tuple[list[E], int]:
        """Take the entries of the next engine call.

        Args:
            now: the caller's clock.
            idle: whether no call is under way; then anything may leave.
            overhead_tokens: tokens that the engine could run in the time that a call costs by itself.
            most_tokens: most tokens of the call, padding included; one row may have more.
            patience_s: how long after its arrival the entry with the earliest turn may be passed over.

        Returns:
            The entries and their padded length; no entries if there is nothing worth sending now.
        """
        waiting = [index for index, bucket in enumerate(self._buckets) if bucket.entries]
        due = [index for index in waiting if idle or self._is_due(self._buckets[index], now, most_tokens)]
        if not due:
            return [], 0
        first = min(due, key=lambda index: self._buckets[index].first.turn)
        if now - self._buckets[first].first.arrival > patience_s:
            due = [first]
        plans = [self._plan(index, overhead_tokens, most_tokens) for index in due]
        best = max(plans, key=lambda plan: plan.usefulness)
        return self._take(best), self._buckets[best.bucket].padded_length

    def next_due(self) -> float | None:
        """Return when the first batch that is not full has waited long enough, or None if nothing waits."""
        oldest = self.oldest_arrival
        return None if oldest is None else oldest + self._max_delay_s

    @property
    def oldest_arrival(self) -> float | None:
        """When the entry that has waited longest came, or None if nothing waits."""
        return min((bucket.first.arrival for bucket in self._buckets if bucket.entries), default=None)

    def discard(self, is_gone: Callable[[E], bool]) -> None:
        """Drop all entries that are gone."""
        for bucket in self._buckets:
            kept = [waiting for waiting in bucket.entries if not is_gone(waiting.entry)]
            if len(kept) < len(bucket.entries):
                heapq.heapify(kept)
                tokens = sum(waiting.length for waiting in kept)
                self.inputs -= len(bucket.entries) - len(kept)
                self.tokens -= bucket.tokens - tokens
                bucket.entries, bucket.tokens = kept, tokens

    def drain(self) -> list[E]:
        """Take out everything."""
        entries = [waiting.entry for bucket in self._buckets for waiting in bucket.entries]
        self.discard(lambda _: True)
        return entries

    def _is_due(self, bucket: _Bucket[E], now: float, most_tokens: float) -> bool:
        return (
            len(bucket.entries) >= bucket.most_rows_within(most_tokens)
            or now - bucket.first.arrival >= self._max_delay_s
        )

    def _plan(self, index: int, overhead_tokens: float, most_tokens: float) -> _Plan:
        """Fill a batch of that bucket; shorter entries join while they make it more useful."""
        top = self._buckets[index]
        most_rows = top.most_rows_within(most_tokens)
        rows = [0] * (index + 1)
        taken, useful, usefulness = 0, 0.0, 0.0
        for lower in range(index, -1, -1):
            bucket = self._buckets[lower]
            if not bucket.entries:
                continue
            if bucket.mean_length / top.padded_length <= usefulness or taken == most_rows:
                break
            rows[lower] = min(len(bucket.entries), most_rows - taken)
            taken += rows[lower]
            useful += rows[lower] * bucket.mean_length
            usefulness = useful / (overhead_tokens + taken * top.padded_length)
        return _Plan(index, rows, usefulness)

    def _take(self, plan: _Plan) -> list[E]:
        entries = []
        for bucket, rows in zip(self._buckets, plan.rows, strict=False):
            before = bucket.tokens
            entries += [bucket.pop() for _ in range(rows)]
            self.inputs -= rows
            self.tokens -= before - bucket.tokens
        return entries
