import asyncio
import copy
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest

from gateway.batching import pad
from gateway.errors import (
    EngineBadOutput,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    GatewayError,
    Overloaded,
    StartupError,
)
from gateway.triton import TritonEngine, open_triton_engine
from gateway.types import Batch
from tests.fakes import TABLE
from tests.stub_triton import Arrays, StubTriton, serve_stub

CONFIG: dict[str, Any] = {
    "name": "stub",
    "max_batch_size": 64,
    "input": [
        {"name": "input_ids", "data_type": "TYPE_INT32", "dims": [-1]},
        {"name": "attention_mask", "data_type": "TYPE_INT32", "dims": [-1]},
    ],
    "output": [{"name": "last_hidden_state", "data_type": "TYPE_FP32", "dims": [-1, 8]}],
    "parameters": {
        key: {"string_value": value}
        for key, value in {
            "embedding.format": "1",
            "embedding.pooling": "mean",
            "embedding.hidden_size": "8",
            "embedding.max_sequence_length": "512",
            "embedding.length_buckets": "512",
            "embedding.pad_id": "0",
            "embedding.vocab_size": "1000",
            "embedding.prompts": "{}",
        }.items()
    },
}


def hidden_states(inputs: Arrays) -> Arrays:
    return {"last_hidden_state": TABLE[inputs["input_ids"]]}


def batch_of(rows: int, length: int = 4) -> Batch:
    return pad([np.arange(1, length, dtype=np.int32)] * rows, length, 0)


@pytest.fixture
async def stub() -> AsyncIterator[StubTriton]:
    async with serve_stub(StubTriton(copy.deepcopy(CONFIG), hidden_states)) as stub:
        yield stub


@pytest.fixture
async def engine(stub: StubTriton) -> AsyncIterator[TritonEngine]:
    engine = await open_triton_engine(stub.url, "stub", 5)
    yield engine
    await engine.close()


async def test_a_batch_goes_out_as_it_is_and_comes_back(stub: StubTriton, engine: TritonEngine) -> None:
    batch = batch_of(3)
    output = await engine.infer(batch, 5)
    np.testing.assert_array_equal(output, TABLE[batch.input_ids])
    (sent,) = stub.requests
    assert sent.keys() == {"input_ids", "attention_mask"}
    np.testing.assert_array_equal(sent["input_ids"], batch.input_ids)
    np.testing.assert_array_equal(sent["attention_mask"], batch.attention_mask)
    assert {array.dtype for array in sent.values()} == {np.dtype(np.int32)}


async def test_the_models_own_inputs_and_widths(stub: StubTriton) -> None:
    stub.config["input"] = [
        {"name": name, "data_type": "TYPE_INT64", "dims": [-1]}
        for name in ("attention_mask", "token_type_ids", "input_ids")
    ]
    engine = await open_triton_engine(stub.url, "stub", 5)
    batch = batch_of(2)
    np.testing.assert_array_equal(await engine.infer(batch, 5), TABLE[batch.input_ids])
    assert {array.dtype for array in stub.requests[0].values()} == {np.dtype(np.int64)}
    assert not stub.requests[0]["token_type_ids"].any()
    await engine.close()


async def test_half_precision_comes_back_single(stub: StubTriton, engine: TritonEngine) -> None:
    stub.answer = lambda inputs: {"last_hidden_state": TABLE[inputs["input_ids"]].astype(np.float16)}
    assert (await engine.infer(batch_of(1), 5)).dtype == np.float32


async def test_the_largest_batch_passes_grpcs_message_limit(stub: StubTriton) -> None:
    # gRPC's own limit is 4 MiB; this is 96 MiB.
    stub.config["output"][0]["dims"] = [-1, 768]
    stub.config["parameters"]["embedding.hidden_size"]["string_value"] = "768"
    stub.answer = lambda inputs: {"last_hidden_state": np.ones((*inputs["input_ids"].shape, 768), np.float32)}
    engine = await open_triton_engine(stub.url, "stub", 5)
    output = await engine.infer(batch_of(64, 512), 30)
    assert output.nbytes == 96 * 2**20
    await engine.close()


QUEUE_FULL = "[request id: 1] Exceeds maximum queue size"


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, QUEUE_FULL, Overloaded),
        (grpc.StatusCode.UNAVAILABLE, "Request timeout expired", EngineTimeout),
        (grpc.StatusCode.UNAVAILABLE, "Request for unknown model: 'stub' is not found", EngineUnavailable),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", EngineUnavailable),
        (grpc.StatusCode.NOT_FOUND, "unknown model", EngineUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", EngineTimeout),
        (grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape", EngineRejected),
        (grpc.StatusCode.INTERNAL, "CUDA error at /src/x.cc:12", EngineRejected),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "", EngineRejected),
    ],
)
async def test_every_status_has_its_error(
    stub: StubTriton, engine: TritonEngine, status: grpc.StatusCode, message: str, error: type[GatewayError]
) -> None:
    stub.status = (status, message)
    with pytest.raises(error) as caught:
        await engine.infer(batch_of(1), 5)
    assert type(caught.value) is error
    assert not message or message not in str(caught.value)  # a foreign text is not for callers


async def test_no_status_is_left_untranslated(stub: StubTriton, engine: TritonEngine) -> None:
    for status in grpc.StatusCode:
        if status is not grpc.StatusCode.OK:
            stub.status = (status, "")
            with pytest.raises(GatewayError):
                await engine.infer(batch_of(1), 5)


async def test_the_timeout_is_passed_on_and_cancels_at_the_server(stub: StubTriton, engine: TritonEngine) -> None:
    stub.delay_s = 30
    started = time.monotonic()
    with pytest.raises(EngineTimeout):
        await engine.infer(batch_of(1), 0.2)
    assert time.monotonic() - started < 5
    await until(lambda: stub.cancelled == 1)


async def test_cancelling_the_caller_cancels_at_the_server(stub: StubTriton, engine: TritonEngine) -> None:
    stub.delay_s = 30
    task = asyncio.create_task(engine.infer(batch_of(1), 30))
    await until(lambda: len(stub.requests) == 1)
    task.cancel()
    await until(lambda: stub.cancelled == 1)
    assert task.cancelled()


@pytest.mark.parametrize(
    "output",
    [
        pytest.param({}, id="none"),
        pytest.param({"other": np.zeros((2, 4, 8), np.float32)}, id="another name"),
        pytest.param({"last_hidden_state": np.zeros((1, 4, 8), np.float32)}, id="a row too few"),
        pytest.param({"last_hidden_state": np.zeros((2, 8), np.float32)}, id="another rank"),
        pytest.param({"last_hidden_state": np.zeros((2, 4, 7), np.float32)}, id="another width"),
        pytest.param({"last_hidden_state": np.zeros((2, 4, 8), np.int32)}, id="another dtype"),
        pytest.param({"last_hidden_state": np.zeros((0, 4, 8), np.float32)}, id="empty"),
    ],
)
async def test_bad_tensors_never_come_through(stub: StubTriton, engine: TritonEngine, output: Arrays) -> None:
    stub.answer = lambda _: output
    with pytest.raises(EngineBadOutput):
        await engine.infer(batch_of(2), 5)


@pytest.mark.parametrize("ready", [False, None], ids=["not loaded", "hangs"])
async def test_ready_says_why_not_in_time(stub: StubTriton, engine: TritonEngine, ready: bool | None) -> None:
    await engine.check_ready(5)
    stub.ready = ready
    with pytest.raises(EngineUnavailable, match="does not answer" if ready is None else "has not loaded"):
        await engine.check_ready(0.3)


async def test_opening_waits_for_triton_to_come_up(unused_tcp_port: int) -> None:
    opening = asyncio.create_task(open_triton_engine(f"127.0.0.1:{unused_tcp_port}", "stub", 20))
    await asyncio.sleep(0.6)
    stub = StubTriton(copy.deepcopy(CONFIG), hidden_states, port=unused_tcp_port)
    async with serve_stub(stub):
        engine = await opening
        await engine.infer(batch_of(1), 5)
        await engine.close()


async def test_opening_gives_up_with_the_reason(unused_tcp_port: int) -> None:
    with pytest.raises(StartupError, match=r"model stub was not ready on Triton at .* within 0.5 s: Triton cannot be"):
        await open_triton_engine(f"127.0.0.1:{unused_tcp_port}", "stub", 0.5)


async def test_opening_a_model_that_does_not_keep_the_contract(stub: StubTriton) -> None:
    stub.config["output"][0]["name"] = "logits"
    with pytest.raises(StartupError, match="outputs are"):
        await open_triton_engine(stub.url, "stub", 5)


async def until(condition: Any, timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
