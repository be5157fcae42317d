"""An engine without a model: its answer is computed from the ids, so that order and padding faults show."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gateway.contract import Pooling
from gateway.types import Batch, Encoding, Float32Array, ModelSpec, OutputKind

VOCAB_SIZE = 1000
TABLE = np.random.default_rng(0).standard_normal((VOCAB_SIZE, 8)).astype(np.float32)


def make_spec(**changes: object) -> ModelSpec:
    """Return a small model's spec."""
    fields: dict[str, object] = {
        "name": "fake",
        "inputs": {"input_ids": np.dtype(np.int32), "attention_mask": np.dtype(np.int32)},
        "output": "last_hidden_state",
        "output_kind": OutputKind.TOKEN_EMBEDDINGS,
        "hidden_size": TABLE.shape[1],
        "max_batch_size": 8,
        "max_sequence_length": 32,
        "length_buckets": (4, 8, 16, 32),
        "pooling": Pooling.MEAN,
        "pad_id": 0,
        "vocab_size": VOCAB_SIZE,
        "prompts": {"query": "query: ", "passage": "passage: "},
        "instances": 2,
        **changes,
    }
    return ModelSpec(**fields)  # type: ignore[arg-type]


def encoding(*ids: int) -> Encoding:
    """Return an encoding of these ids."""
    return Encoding(np.array(ids, np.int32))


def expected_rows(encodings: Sequence[Encoding]) -> Float32Array:
    """Return what mean pooling makes of the fake's answer, one input at a time."""
    return np.stack([TABLE[one.input_ids].mean(axis=0, dtype=np.float32) for one in encodings])


@dataclass
class FakeEngine:
    """Answers with TABLE's rows, and with a large value or NaN at padded positions.

    Attributes:
        delay_s: how long a call takes.
        gate: when set, calls wait for it.
        error: raised by each call, if not None.
        batches: all batches asked for.
        headers: what went along with each.
        running: calls under way; most_running the largest it was.
        cancelled: calls that were cancelled.
    """

    spec: ModelSpec = field(default_factory=make_spec)
    delay_s: float = 0.0
    gate: asyncio.Event | None = None
    error: Exception | None = None
    padding_value: float = 1e30
    batches: list[Batch] = field(default_factory=list)
    headers: list[Mapping[str, str] | None] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    cancelled: int = 0
    closed: bool = False
    reconnects: int = 0
    not_ready: Exception | None = None

    async def infer(self, batch: Batch, timeout_s: float, headers: Mapping[str, str] | None = None) -> Float32Array:
        assert timeout_s > 0
        self.batches.append(batch)
        self.headers.append(headers)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait() if self.gate else await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if self.error:
            raise self.error
        return self._answer(batch)

    def _answer(self, batch: Batch) -> Float32Array:
        hidden = TABLE[batch.input_ids]
        if self.spec.output_kind is OutputKind.SENTENCE_EMBEDDING:
            weights = batch.attention_mask[:, :, None]
            pooled: Float32Array = ((hidden * weights).sum(1) / weights.sum(1)).astype(np.float32)
            return pooled
        hidden[batch.attention_mask == 0] = self.padding_value
        return hidden

    async def check_ready(self, timeout_s: float) -> None:
        if self.not_ready:
            raise self.not_ready

    async def reconnect(self) -> None:
        self.reconnects += 1

    async def close(self) -> None:
        self.closed = True
