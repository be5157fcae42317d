"""The order of the pipeline, and only here: admit, tokenize, schedule, cut and normalise. Called by routes."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gateway.errors import (
    EngineBadOutput,
    EngineTimeout,
    EngineUnavailable,
    ExceededLimit,
    GatewayError,
    InvalidDimensions,
    InvalidRequest,
    Overloaded,
    TokenLimitExceeded,
)
from gateway.metrics import Metrics
from gateway.pooling import normalize
from gateway.scheduler import Scheduler
from gateway.self_check import describe_mismatch
from gateway.tokenizer import Tokenizer
from gateway.types import EmbeddingResult, Encoding, Engine, Float32Array, Inputs, ModelSpec, Timings, Truncate

if TYPE_CHECKING:
    from gateway.tracing import RequestTrace

_SELF_CHECK_TIMEOUT_S = 60.0
_LONGEST_RETRY_AFTER_S = 60
"""OpenAI's client ignores longer ones."""

_WAITING = {
    ExceededLimit.QUEUED_INPUTS: "Too many inputs are waiting.",
    ExceededLimit.QUEUED_TOKENS: "Too many tokens are waiting.",
    ExceededLimit.QUEUE_TIME: "What is waiting already will take too long.",
}

_SYNONYMS = {"document": "passage", "passage": "document"}
"""Input types that mean the same; models name their prompts either way."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for, and how much may wait.

    Attributes:
        max_request_tokens: tokens of one request, over all its inputs.
        max_queued_inputs: inputs waiting for an engine slot, over all requests.
        max_queued_tokens: tokens waiting for an engine slot, over all requests.
        max_queue_s: expected wait for an engine slot.
    """

    max_request_tokens: int
    max_queued_inputs: int
    max_queued_tokens: int
    max_queue_s: float


class Embedder:
    """Answers the requests to one model.

    Args:
        model: the model's public name, for metrics.
        engine: the model on Triton.
        tokenizer: the model's tokenizer.
        scheduler: batches for that engine.
        limits: what is refused.
        normalized: whether vectors are scaled to unit length.
        metrics: told of answers that no caller may see.

    Attributes:
        unready_reason: why the model must not be used, or None; one sentence for callers. Set by watch.
    """

    def __init__(
        self,
        model: str,
        *,
        engine: Engine,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        limits: Limits,
        normalized: bool,
        metrics: Metrics,
    ) -> None:
        self._model = model
        self._engine = engine
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._limits = limits
        self._normalized = normalized
        self._metrics = metrics
        self.unready_reason: str | None = None

    @property
    def spec(self) -> ModelSpec:
        """What the engine said of itself."""
        return self._engine.spec

    async def embed(
        self,
        inputs: Inputs,
        *,
        timeout_s: float,
        dimensions: int | None = None,
        truncate: Truncate = Truncate.NONE,
        input_type: str | None = None,
        trace: "RequestTrace | None" = None,
    ) -> EmbeddingResult:
        """Embed the inputs, all or none.

        Args:
            inputs: N texts, or N lists of this model's token ids; none of them empty.
            timeout_s: the request's deadline, over all its parts.
            dimensions: D, or None for the model's own; vectors are cut to it and normalised again.
            truncate: what happens to an input that is too long.
            input_type: which of the model's prompts is put before each input, or None for no prompt.
            trace: told of the stages; None if the request is not traced.

        Raises:
            InvalidRequest: an input, `dimensions` or `input_type` is not for this model.
            Overloaded: too much is waiting already; nothing was done.
            EngineUnavailable: the model did not pass its start-up check, or Triton cannot be reached.
            EngineTimeout: the deadline passed.
            InternalError: the engine failed, or answered with NaN or infinity.
        """
        self._admit(len(inputs), 0)
        self._check_dimensions(dimensions)
        prompt = self._prompt(input_type)
        deadline = asyncio.get_running_loop().time() + timeout_s
        started = time.perf_counter()
        encodings = await self._encode(inputs, truncate, prompt, deadline)
        tokenized = time.perf_counter()
        if trace is not None:
            trace.stage("tokenize", started, tokenized)
        tokens = self._count_tokens(encodings)
        self._admit(len(inputs), tokens)
        embeddings, timings = await self._run(encodings, deadline, trace)
        return EmbeddingResult(
            embeddings=self._finish(embeddings, dimensions),
            prompt_tokens=tokens,
            truncated_inputs=sum(encoding.truncated for encoding in encodings),
            timings=replace(timings, tokenize_s=tokenized - started),
        )

    async def check_ready(self, timeout_s: float) -> None:
        """Return when the model passed its check and Triton has it ready.

        Raises:
            EngineUnavailable: one of the two is not so, or Triton did not say within `timeout_s` seconds.
        """
        if self.unready_reason is not None:
            raise EngineUnavailable(self.unready_reason)
        await self._engine.check_ready(timeout_s)

    async def find_mismatch(self, texts: list[str], expected: Float32Array) -> str | None:
        """Embed texts whose vectors are known, even while the model is not ready; return what is wrong, or None.

        Args:
            texts: N of them.
            expected: float32 [N,H] of unit length.
        """
        deadline = asyncio.get_running_loop().time() + _SELF_CHECK_TIMEOUT_S
        try:
            encodings = await self._encode(texts, Truncate.END, "", deadline)
            vectors = self._finish((await self._run(encodings, deadline))[0], None)
        except GatewayError as error:
            return f"its self-check failed: {error}"
        return describe_mismatch(vectors, expected)

    def give_up(self, reason: str) -> None:
        """Be not ready, and fail all requests under way: their answers may be wrong, or never come."""
        self.unready_reason = reason
        self._scheduler.drop(_not_ready())

    def _check_dimensions(self, dimensions: int | None) -> None:
        if dimensions is not None and not 1 <= dimensions <= self.spec.hidden_size:
            raise InvalidDimensions(
                f"This model's vectors have {self.spec.hidden_size} dimensions: `dimensions` is from 1 to that.",
                param="dimensions",
            )

    def _prompt(self, input_type: str | None) -> str:
        if input_type is None:
            return ""
        prompts = self.spec.prompts
        for name in (input_type, _SYNONYMS.get(input_type, input_type)):
            if name in prompts:
                return prompts[name]
        if not prompts:
            raise InvalidRequest("This model has no prompts: leave `input_type` out.", param="input_type")
        known = " or ".join(f"`{name}`" for name in sorted(prompts))
        raise InvalidRequest(f"This model has no prompt for that `input_type`; it can be {known}.", param="input_type")

    def _admit(self, inputs: int, tokens: int) -> None:
        """Refuse all while not ready, and what would wait too long; what comes while nothing waits is taken then."""
        if self.unready_reason is not None:
            raise _not_ready()
        limit = self._find_exceeded(inputs, tokens) if self._scheduler.queued_inputs else None
        if limit is not None:
            retry_after_s = min(max(math.ceil(self._scheduler.expected_wait_s), 1), _LONGEST_RETRY_AFTER_S)
            raise Overloaded(f"{_WAITING[limit]} Try again later.", limit, retry_after_s=retry_after_s)

    def _find_exceeded(self, inputs: int, tokens: int) -> ExceededLimit | None:
        scheduler, limits = self._scheduler, self._limits
        if scheduler.queued_inputs + inputs > limits.max_queued_inputs:
            return ExceededLimit.QUEUED_INPUTS
        if scheduler.queued_tokens + tokens > limits.max_queued_tokens:
            return ExceededLimit.QUEUED_TOKENS
        return ExceededLimit.QUEUE_TIME if scheduler.expected_wait_s > limits.max_queue_s else None

    async def _encode(self, inputs: Inputs, truncate: Truncate, prompt: str, deadline: float) -> list[Encoding]:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._tokenizer.encode(inputs, truncate=truncate, prompt=prompt)
        except TimeoutError:
            raise EngineTimeout("The request's deadline passed before its inputs were tokenized.") from None

    def _count_tokens(self, encodings: Sequence[Encoding]) -> int:
        tokens = sum(len(encoding.input_ids) for encoding in encodings)
        if tokens > (most := self._limits.max_request_tokens):
            message = f"The inputs have {tokens} tokens together; one request may have {most}. Send fewer at a time."
            raise TokenLimitExceeded(message, param="input")
        return tokens

    async def _run(
        self, encodings: Sequence[Encoding], deadline: float, trace: "RequestTrace | None" = None
    ) -> tuple[Float32Array, Timings]:
        try:
            return await self._scheduler.run(encodings, deadline, trace)
        except EngineBadOutput:
            self._metrics.bad_output(self._model)
            self.give_up("Its engine answered another tensor than it was asked for.")
            raise

    def _finish(self, embeddings: Float32Array, dimensions: int | None) -> Float32Array:
        finite = np.isfinite(embeddings).all(axis=1)
        if not finite.all():
            self._metrics.bad_output(self._model)
            index = int(np.argmin(finite))
            raise EngineBadOutput(f"The engine answered with NaN or infinity for input {index}.")
        cut = embeddings[:, :dimensions]
        return normalize(cut) if self._normalized else np.ascontiguousarray(cut)


def _not_ready() -> EngineUnavailable:
    return EngineUnavailable("The model is not ready.", retry_after_s=1)
