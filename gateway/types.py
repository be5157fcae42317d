"""The values that flow through the gateway, one type a stage. Imports nothing of the package but the contract.

Letters in shapes: N inputs of a request, B rows of a batch, S padded sequence length, H hidden size, D dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeIs

from gateway.contract import Pooling

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]

Inputs: TypeAlias = list[str] | list[list[int]]
"""The inputs of one request: N texts, or N lists of the model's own token ids without special tokens."""


def are_texts(inputs: Inputs) -> TypeIs[list[str]]:
    """Say whether the inputs are texts; otherwise they are lists of token ids."""
    return isinstance(inputs[0], str)


class Truncate(StrEnum):
    """What happens to an input longer than the model's limit: refuse it, or keep its start or its end."""

    NONE = "NONE"
    END = "END"
    START = "START"


class OutputKind(StrEnum):
    """What the engine answers: [B,S,H] to be pooled by the gateway, or [B,H] pooled by itself."""

    TOKEN_EMBEDDINGS = "token_embeddings"
    SENTENCE_EMBEDDING = "sentence_embedding"


@dataclass(frozen=True, slots=True)
class Encoding:
    """One tokenized input.

    Attributes:
        input_ids: int32 [n], special tokens included, no padding, 1 <= n <= the model's longest sequence.
        truncated: whether tokens were cut off to fit.
    """

    input_ids: Int32Array
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What one engine call takes.

    Attributes:
        input_ids: int32 [B,S], right-padded with the model's pad id.
        attention_mask: int32 [B,S] of 0/1, each row with at least one 1.
    """

    input_ids: Int32Array
    attention_mask: Int32Array


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A served model as its engine describes itself.

    Attributes:
        name: Triton's name of the model.
        inputs: tensor name to the numpy dtype that the engine wants for it.
        output: name of the output tensor.
        output_kind: rank 3 or rank 2 of that tensor.
        hidden_size: H.
        max_batch_size: most rows of one engine call.
        max_sequence_length: most tokens of one input, special tokens included.
        length_buckets: ascending padded lengths; the last holds any legal input.
        pooling: how [B,S,H] becomes [B,H].
        pad_id: token id that fills padding.
        vocab_size: every token id is below it.
        prompts: input type to the text put before each input.
        instances: engine instances that run at the same time.
    """

    name: str
    inputs: Mapping[str, np.dtype[np.int32] | np.dtype[np.int64]]
    output: str
    output_kind: OutputKind
    hidden_size: int
    max_batch_size: int
    max_sequence_length: int
    length_buckets: tuple[int, ...]
    pooling: Pooling
    pad_id: int
    vocab_size: int
    prompts: Mapping[str, str]
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds that one request spent in each stage; `queue_s` and `infer_s` are the slowest part's."""

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    infer_s: float = 0.0
    pool_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """The answer to one request.

    Attributes:
        embeddings: float32 [N,D], finite, in input order, owned by the caller.
        prompt_tokens: real tokens embedded over all inputs, special tokens included, padding not.
        truncated_inputs: how many inputs were cut to fit.
        timings: where the time went.
    """

    embeddings: Float32Array
    prompt_tokens: int
    truncated_inputs: int
    timings: Timings


class Engine(Protocol):
    """One model on Triton, at one endpoint or several: all that the scheduler knows of it."""

    @property
    def spec(self) -> ModelSpec:
        """What the engine said of itself when it was opened."""
        ...

    async def infer(self, batch: Batch, timeout_s: float, headers: Mapping[str, str] | None = None) -> Float32Array:
        """Run one batch; return float32 [B,S,H] or [B,H] as `spec.output_kind` says, possibly a read-only view.

        `headers` go along with the call: the context of its trace, or nothing.

        Raises:
            EngineUnavailable: Triton cannot be reached, nor on another connection, or the model is not ready.
            EngineTimeout: no answer within `timeout_s` seconds.
            Overloaded: Triton's own queue is full.
            EngineRejected: Triton refused the batch.
            EngineBadOutput: the answer has another shape or dtype than the spec says.
        """
        ...

    async def check_ready(self, timeout_s: float) -> None:
        """Return when Triton has the model ready, and it is still the one of `spec`.

        Raises:
            EngineUnavailable: it is not so; the message says which.
            EngineSilent: Triton did not say within `timeout_s` seconds.
        """
        ...

    async def reconnect(self) -> None:
        """Give all connections up, and with them the calls under way, and open new ones."""
        ...

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        ...
