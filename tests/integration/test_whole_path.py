"""Texts in, vectors out: a real uvicorn, the real Triton, the demo model; compared with sentence-transformers."""

import asyncio
import base64
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from gateway.metrics import Metrics
from gateway.scheduler import Scheduler
from gateway.token_ids import TokenIds
from gateway.tokenizer import Tokenizer
from gateway.triton import TritonEngine, open_triton_engine
from gateway.types import Batch, Encoding, Float32Array, ModelSpec, Truncate
from tests.gateway_process import GatewayProcess
from tests.integration.texts import TEXTS
from tests.integration.triton_figures import DEMO_MODEL, TritonFigures

Vectors = NDArray[np.float32]


def embed(gateway: GatewayProcess, texts: list[str] | str, **fields: Any) -> Vectors:
    body = {"model": DEMO_MODEL, "input": texts, **fields}
    response = httpx.post(f"{gateway.url}/v1/embeddings", json=body, timeout=120)
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data], np.float32)


def cosines(left: Vectors, right: Vectors) -> NDArray[np.float64]:
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray(np.einsum("nd,nd->n", left, right) / norms, np.float64)


@pytest.fixture(scope="module")
def reference(demo_model_folder: Path) -> Vectors:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds

    model = SentenceTransformer(str(demo_model_folder), device="cpu")
    return np.asarray(model.encode(TEXTS, normalize_embeddings=True), np.float32)


def test_equal_to_sentence_transformers(gateway: GatewayProcess, reference: Vectors) -> None:
    vectors = embed(gateway, TEXTS, truncate="END")
    assert vectors.shape == reference.shape
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    least = cosines(vectors, reference).min()
    assert least >= 0.9999, f"text {cosines(vectors, reference).argmin()}"
    np.testing.assert_allclose(vectors, reference, atol=1e-5)


def test_alone_equals_in_a_batch(gateway: GatewayProcess) -> None:
    together = embed(gateway, TEXTS, truncate="END")
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(embed(gateway, text, truncate="END")[0], vector, atol=1e-5)


@pytest.mark.parametrize("count", [1, 32, 33, 64, 65, 1000])
def test_any_number_of_texts_in_order(gateway: GatewayProcess, count: int) -> None:
    texts = [f"{i} {TEXTS[i % 23]}" for i in range(count)]
    random.Random(count).shuffle(texts)
    vectors = embed(gateway, texts)
    assert len(vectors) == count
    picked = random.Random(0).sample(range(count), min(count, 8))
    singles = np.concatenate([embed(gateway, texts[i]) for i in picked])
    np.testing.assert_allclose(vectors[picked], singles, atol=1e-5)


def test_base64_equals_float_bit_for_bit(gateway: GatewayProcess) -> None:
    body = {"model": DEMO_MODEL, "input": TEXTS[:5], "encoding_format": "base64"}
    data = httpx.post(f"{gateway.url}/v1/embeddings", json=body, timeout=60).json()["data"]
    decoded = np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in data])
    np.testing.assert_array_equal(decoded, embed(gateway, TEXTS[:5]))


def test_usage_counts_real_tokens(gateway: GatewayProcess) -> None:
    body = {"model": DEMO_MODEL, "input": ["tree", "tree tree tree"]}
    response = httpx.post(f"{gateway.url}/v1/embeddings", json=body, timeout=60).json()
    assert response["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert response["model"] == DEMO_MODEL


def test_openai_client(gateway: GatewayProcess, reference: Vectors) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused") as client:
        answer = client.embeddings.create(model=DEMO_MODEL, input=TEXTS[:4])
        assert [model.id for model in client.models.list()] == [DEMO_MODEL]
        with pytest.raises(openai.NotFoundError, match=DEMO_MODEL) as caught:
            client.embeddings.create(model="other", input="x")
    vectors = np.array([one.embedding for one in answer.data], np.float32)
    np.testing.assert_allclose(vectors, reference[:4], atol=1e-5)
    assert caught.value.code == "model_not_found"


async def test_openai_client_async(gateway: GatewayProcess, reference: Vectors) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused") as client:
        answers = await asyncio.gather(*(client.embeddings.create(model=DEMO_MODEL, input=text) for text in TEXTS[:16]))
    vectors = np.array([answer.data[0].embedding for answer in answers], np.float32)
    np.testing.assert_allclose(vectors, reference[:16], atol=1e-5)


async def test_concurrent_single_texts_of_mixed_lengths_are_merged(
    gateway: GatewayProcess, triton_figures: TritonFigures
) -> None:
    random_words = random.Random(3)
    texts = [" ".join(["river"] * random_words.randint(3, 200)) for _ in range(64)]
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=64)) as client:

        async def one(text: str) -> None:
            body = {"model": DEMO_MODEL, "input": text}
            (await client.post(f"{gateway.url}/v1/embeddings", json=body)).raise_for_status()

        before = triton_figures()
        await asyncio.gather(*map(one, texts))
        after = triton_figures()
    assert after.inferences - before.inferences == 64
    assert after.executions - before.executions <= 12


class Delayed:
    """The real engine, whose answers come in another order than they were asked for."""

    def __init__(self, engine: TritonEngine, spec: ModelSpec | None = None) -> None:
        self.engine = engine
        self.spec = spec or engine.spec
        self.calls = 0

    async def infer(self, batch: Batch, timeout_s: float, headers: Mapping[str, str] | None = None) -> Float32Array:
        self.calls += 1
        delay_s = 0.3 if self.calls == 1 else 0.0
        output = await self.engine.infer(batch, timeout_s, headers)
        await asyncio.sleep(delay_s)
        return output

    async def check_ready(self, timeout_s: float) -> None:
        await self.engine.check_ready(timeout_s)

    async def reconnect(self) -> None:
        await self.engine.reconnect()

    async def close(self) -> None:
        await self.engine.close()


async def run(engine: Delayed, encodings: list[Encoding]) -> Float32Array:
    with ThreadPoolExecutor(1) as executor:
        scheduler = Scheduler(
            engine,
            slots=4,
            max_batch_tokens=4096,
            max_delay_s=0,
            executor=executor,
            metrics=Metrics([DEMO_MODEL]),
            model=DEMO_MODEL,
        )
        rows, _ = await scheduler.run(encodings, asyncio.get_running_loop().time() + 120)
        await scheduler.close()
    return rows


async def test_order_and_vectors_under_delay_and_in_other_buckets(triton_url: str, model_repository: Path) -> None:
    real = await open_triton_engine(triton_url, DEMO_MODEL, 30)
    with ThreadPoolExecutor(1) as executor:
        tokenizer = Tokenizer(
            model_repository / DEMO_MODEL / "tokenizer.json",
            max_sequence_length=real.spec.max_sequence_length,
            vocab_size=real.spec.vocab_size,
            max_input_chars=100_000,
            token_ids=TokenIds.VERIFY,
            executor=executor,
        )
        encodings = await tokenizer.encode(TEXTS, truncate=Truncate.END)
    shuffled = random.Random(1).sample(range(len(TEXTS)), len(TEXTS))
    in_order = await run(Delayed(real), encodings)
    delayed = await run(Delayed(real), [encodings[i] for i in shuffled])
    np.testing.assert_allclose(delayed, in_order[shuffled], atol=2e-5)
    longest_only = replace(real.spec, length_buckets=real.spec.length_buckets[-1:])
    np.testing.assert_allclose(await run(Delayed(real, longest_only), encodings), in_order, atol=2e-5)
    await real.close()


def test_tritons_own_figures_show_the_real_server(
    gateway: GatewayProcess, triton_http_url: str, triton_figures: TritonFigures
) -> None:
    assert httpx.get(f"{triton_http_url}/v2").json()["name"] == "triton"
    before = triton_figures()
    embed(gateway, [f"{i} trees" for i in range(200)])
    after = triton_figures()
    assert after.inferences - before.inferences == 200
    assert after.executions - before.executions < 20
