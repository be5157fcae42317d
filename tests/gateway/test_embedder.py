import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from gateway.embedder import Embedder, Limits
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
from gateway.scheduler import Scheduler
from gateway.tokenizer import Tokenizer
from gateway.types import Encoding, Inputs, Truncate
from tests.fakes import FakeEngine, encoding, expected_rows, make_spec

LIMITS = Limits(max_request_tokens=1000, max_queued_inputs=100, max_queued_tokens=500, max_queue_s=5)


class WordLengths:
    """Stands for a tokenizer: a text's ids are its words' lengths."""

    delay_s = 0.0

    async def encode(self, inputs: Inputs, *, truncate: Truncate, prompt: str = "") -> list[Encoding]:
        await asyncio.sleep(self.delay_s)
        encodings = [encoding(*(len(word) for word in (prompt + str(text)).split())) for text in inputs]
        return [replace(one, truncated=truncate is Truncate.END) for one in encodings]


class Setup:
    """An Embedder over fakes, with its parts in reach."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.engine = FakeEngine()
        self.metrics = Metrics(["m"])
        self.tokenizer = WordLengths()
        self.scheduler = Scheduler(
            self.engine,
            slots=1,
            max_batch_tokens=1000,
            max_delay_s=0.005,
            executor=executor,
            metrics=self.metrics,
            model="m",
        )

    def embedder(self, *, normalized: bool = True, limits: Limits = LIMITS) -> Embedder:
        return Embedder(
            "m",
            engine=self.engine,
            tokenizer=cast(Tokenizer, self.tokenizer),
            scheduler=self.scheduler,
            limits=limits,
            normalized=normalized,
            metrics=self.metrics,
        )

    def counter(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"gateway_{name}", {"model": "m", **labels})


@pytest.fixture
def setup() -> Iterator[Setup]:
    with ThreadPoolExecutor(1) as executor:
        yield Setup(executor)


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


async def test_vectors_tokens_and_order(setup: Setup) -> None:
    texts = ["a bb ccc", "dddd", "bb a"]
    result = await setup.embedder().embed(texts, timeout_s=5)
    expected = unit(expected_rows([encoding(1, 2, 3), encoding(4), encoding(2, 1)]))
    np.testing.assert_allclose(result.embeddings, expected, rtol=1e-5)
    assert result.embeddings.dtype == np.float32
    assert (result.prompt_tokens, result.truncated_inputs) == (6, 0)


async def test_unnormalized(setup: Setup) -> None:
    result = await setup.embedder(normalized=False).embed(["a bb"], timeout_s=5)
    np.testing.assert_allclose(result.embeddings, expected_rows([encoding(1, 2)]), rtol=1e-5)


@pytest.mark.parametrize("dimensions", [1, 3, 8])
async def test_dimensions_are_cut_and_normalised_again(setup: Setup, dimensions: int) -> None:
    result = await setup.embedder().embed(["a bb"], timeout_s=5, dimensions=dimensions)
    np.testing.assert_allclose(result.embeddings, unit(expected_rows([encoding(1, 2)])[:, :dimensions]), rtol=1e-5)


@pytest.mark.parametrize("dimensions", [0, -1, 9])
async def test_dimensions_outside_the_model(setup: Setup, dimensions: int) -> None:
    with pytest.raises(InvalidDimensions, match="8 dimensions"):
        await setup.embedder().embed(["a"], timeout_s=5, dimensions=dimensions)
    assert not setup.engine.batches


async def test_truncated_inputs_are_counted(setup: Setup) -> None:
    result = await setup.embedder().embed(["a", "b"], timeout_s=5, truncate=Truncate.END)
    assert result.truncated_inputs == 2


@pytest.mark.parametrize(("input_type", "ids"), [("query", (6, 1)), ("passage", (8, 1)), ("document", (8, 1))])
async def test_prompts(setup: Setup, input_type: str, ids: tuple[int, ...]) -> None:
    result = await setup.embedder(normalized=False).embed(["a"], timeout_s=5, input_type=input_type)
    np.testing.assert_allclose(result.embeddings, expected_rows([encoding(*ids)]), rtol=1e-5)


async def test_a_prompt_that_the_model_has_not(setup: Setup) -> None:
    with pytest.raises(InvalidRequest, match="`passage` or `query`") as caught:
        await setup.embedder().embed(["a"], timeout_s=5, input_type="clustering")
    assert caught.value.param == "input_type"
    setup.engine.spec = make_spec(prompts={})
    with pytest.raises(InvalidRequest, match="no prompts"):
        await setup.embedder().embed(["a"], timeout_s=5, input_type="query")


async def test_too_many_tokens_in_one_request(setup: Setup) -> None:
    embedder = setup.embedder(limits=replace(LIMITS, max_request_tokens=5))
    await embedder.embed(["a a a", "a a"], timeout_s=5)
    with pytest.raises(TokenLimitExceeded, match=r"6 tokens.* 5"):
        await embedder.embed(["a a a", "a a a"], timeout_s=5)


@pytest.mark.parametrize(
    ("limits", "exceeded"),
    [
        (replace(LIMITS, max_queued_inputs=20), ExceededLimit.QUEUED_INPUTS),
        (replace(LIMITS, max_queued_tokens=40), ExceededLimit.QUEUED_TOKENS),
    ],
)
async def test_what_would_wait_too_long_is_refused_as_a_whole(
    setup: Setup, limits: Limits, exceeded: ExceededLimit
) -> None:
    setup.engine.gate = asyncio.Event()
    embedder = setup.embedder(limits=limits)
    first = asyncio.create_task(embedder.embed(["a a"] * 24, timeout_s=5))  # 8 run, 16 wait: 32 tokens
    await asyncio.sleep(0.05)
    waiting = setup.scheduler.queued_inputs
    assert waiting == 16
    with pytest.raises(Overloaded) as caught:
        await embedder.embed(["a a"] * 5, timeout_s=5)
    assert caught.value.retry_after_s
    assert caught.value.limit is exceeded
    assert exceeded.removeprefix("queued_") in caught.value.message
    assert setup.scheduler.queued_inputs == waiting
    fits = asyncio.create_task(embedder.embed(["a a"] * 4, timeout_s=5))
    await asyncio.sleep(0)
    setup.engine.gate.set()
    assert len((await fits).embeddings) == 4
    assert len((await first).embeddings) == 24


async def test_the_expected_wait_is_bounded_and_told(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.engine.gate = asyncio.Event()
    embedder = setup.embedder()
    first = asyncio.create_task(embedder.embed(["a a"] * 12, timeout_s=5))  # 8 run, 4 wait: 24 tokens
    await asyncio.sleep(0.05)
    for tokens_per_s, retry_after_s in ((4.0, 6), (0.1, 60), (1e9, None)):
        monkeypatch.setattr(setup.scheduler._drain, "tokens_per_s", tokens_per_s)
        if retry_after_s is None:
            break
        with pytest.raises(Overloaded) as caught:
            await embedder.embed(["a"], timeout_s=5)
        assert caught.value.retry_after_s == retry_after_s
        assert caught.value.limit is ExceededLimit.QUEUE_TIME
    fits = asyncio.create_task(embedder.embed(["a"], timeout_s=5))
    await asyncio.sleep(0)
    setup.engine.gate.set()
    await asyncio.gather(first, fits)


async def test_a_large_request_is_taken_while_nothing_waits(setup: Setup) -> None:
    embedder = setup.embedder(limits=replace(LIMITS, max_queued_inputs=1, max_queued_tokens=1))
    assert len((await embedder.embed(["a a"] * 50, timeout_s=5)).embeddings) == 50


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
async def test_nan_and_infinity_name_the_input_and_are_counted(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    table = np.ones((1000, 8), np.float32)
    table[7, 3] = value
    monkeypatch.setattr("tests.fakes.TABLE", table)
    with pytest.raises(EngineBadOutput, match="for input 1"):
        await setup.embedder().embed(["a", "bbbbbbb a", "a"], timeout_s=5)
    assert setup.counter("bad_outputs_total") == 1


async def test_a_wrong_tensor_is_counted_and_ends_all_that_is_under_way(setup: Setup) -> None:
    embedder = setup.embedder()
    setup.engine.delay_s = 0.05
    setup.engine.error = EngineBadOutput("The engine's answer has no output tensor.")
    first = asyncio.create_task(embedder.embed(["a"], timeout_s=5))
    await asyncio.sleep(0.02)
    others = [asyncio.create_task(embedder.embed(["a"] * 20, timeout_s=5)) for _ in range(3)]
    with pytest.raises(EngineBadOutput):
        await first
    for other in others:
        with pytest.raises(EngineUnavailable):
            await other
    assert setup.counter("bad_outputs_total") == 1
    assert setup.scheduler.queued_inputs == 0
    setup.engine.error = None
    with pytest.raises(EngineUnavailable, match="not ready"):
        await embedder.embed(["a"], timeout_s=5)


async def test_the_self_check_runs_while_not_ready(setup: Setup) -> None:
    embedder = setup.embedder()
    embedder.give_up("Triton does not answer.")
    texts = ["a bb", "ccc"]
    expected = unit(expected_rows([encoding(1, 2), encoding(3)]))
    assert await embedder.find_mismatch(texts, expected) is None
    assert "differ" in str(await embedder.find_mismatch(texts, expected[::-1]))
    assert "are (2, 8)" in str(await embedder.find_mismatch(texts, expected[:, :4]))
    setup.engine.error = EngineUnavailable("Triton cannot be reached.")
    assert "failed: Triton cannot be reached" in str(await embedder.find_mismatch(texts, expected))


async def test_one_deadline_for_all_stages(setup: Setup) -> None:
    setup.tokenizer.delay_s = 5
    with pytest.raises(EngineTimeout, match="tokenized"):
        await setup.embedder().embed(["a"], timeout_s=0.05)
    setup.tokenizer.delay_s = 0.05
    setup.engine.delay_s = 0.08
    with pytest.raises(EngineTimeout, match="engine"):
        await setup.embedder().embed(["a"], timeout_s=0.1)


async def test_ready(setup: Setup) -> None:
    embedder = setup.embedder()
    await embedder.check_ready(1)
    setup.engine.not_ready = EngineUnavailable("Triton has not loaded the model.")
    with pytest.raises(EngineUnavailable, match="not loaded"):
        await embedder.check_ready(1)


async def test_a_model_that_failed_its_check_answers_nothing(setup: Setup) -> None:
    embedder = setup.embedder()
    embedder.unready_reason = "its vectors differ"
    with pytest.raises(EngineUnavailable, match="differ"):
        await embedder.check_ready(1)
    with pytest.raises(GatewayError) as caught:
        await embedder.embed(["a"], timeout_s=5)
    assert caught.value.status == 503
