"""Which Tritons get no shared memory; tests/integration has those that do.

The stub stands for releases of Triton that cannot be run here. What they say is from Triton's source.
"""

import copy
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.errors import StartupError
from gateway.shared_memory import SharedMemory, SharedMemoryOptions
from gateway.triton import open_triton_engine
from tests.fakes import TABLE
from tests.gateway.test_triton import CONFIG, batch_of, hidden_states
from tests.stub_triton import StubTriton, serve_stub

NOT_ALLOWED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
RESTRICTED = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"


@dataclass
class OtherTriton(StubTriton):
    """A Triton of another release, that refuses to register memory.

    Attributes:
        version: its version.
        refusal: its status and what it says.
        asked: how often it was asked to register a region.
    """

    version: str = "2.68.0"
    refusal: tuple[grpc.StatusCode, str] = (grpc.StatusCode.UNIMPLEMENTED, NOT_ALLOWED)
    asked: int = 0

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version=self.version)

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:
        self.asked += 1
        await context.abort(*self.refusal)


@pytest.fixture
async def triton() -> AsyncIterator[OtherTriton]:
    async with serve_stub(OtherTriton(copy.deepcopy(CONFIG), hidden_states)) as triton:
        assert isinstance(triton, OtherTriton)
        yield triton


def options(mode: SharedMemory) -> SharedMemoryOptions:
    return SharedMemoryOptions(mode, 16_384, 1, lambda _: None)


@pytest.mark.parametrize(
    ("status", "message", "option"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, NOT_ALLOWED, "--allow-client-shm=true"),
        (grpc.StatusCode.UNAVAILABLE, NOT_ALLOWED, "--allow-client-shm=true"),
        (grpc.StatusCode.UNAVAILABLE, RESTRICTED, "--grpc-restricted-protocol"),
    ],
)
async def test_what_triton_does_not_allow(
    triton: OtherTriton, caplog: pytest.LogCaptureFixture, status: grpc.StatusCode, message: str, option: str
) -> None:
    triton.refusal = (status, message)
    with pytest.raises(StartupError, match=rf"outputs of model stub: Triton says: .* {option}"):
        await open_triton_engine(triton.url, "stub", 5, options(SharedMemory.ON))
    caplog.set_level(logging.INFO)
    engine = await open_triton_engine(triton.url, "stub", 5, options(SharedMemory.AUTO))
    batch = batch_of(3)
    np.testing.assert_array_equal(await engine.infer(batch, 5), TABLE[batch.input_ids])
    assert triton.asked == 2
    assert f"travel over gRPC: Triton says: {message}" in caplog.text
    assert option in caplog.text
    await engine.close()


@pytest.mark.parametrize("version", ["2.37.0", "2.49.0", "1.99.1"])
async def test_releases_that_crash_when_memory_in_use_is_given_up(triton: OtherTriton, version: str) -> None:
    triton.version = version
    with pytest.raises(StartupError, match=rf"Triton is {version}, 2.50 is needed"):
        await open_triton_engine(triton.url, "stub", 5, options(SharedMemory.ON))
    assert triton.asked == 0


async def test_a_server_without_the_extension() -> None:
    async with serve_stub(StubTriton(copy.deepcopy(CONFIG), hidden_states)) as plain:
        with pytest.raises(StartupError, match="no shared memory for the outputs of model stub: Triton says:"):
            await open_triton_engine(plain.url, "stub", 5, options(SharedMemory.ON))


async def test_pooled_outputs_travel_over_grpc(triton: OtherTriton) -> None:
    triton.config["output"] = [{"name": "sentence_embedding", "data_type": "TYPE_FP32", "dims": [8]}]
    triton.answer = lambda inputs: {"sentence_embedding": TABLE[inputs["input_ids"]].mean(axis=1)}
    engine = await open_triton_engine(triton.url, "stub", 5, options(SharedMemory.ON))
    assert (await engine.infer(batch_of(2), 5)).shape == (2, 8)
    assert triton.asked == 0
    await engine.close()


async def test_off_asks_for_nothing(triton: OtherTriton) -> None:
    engine = await open_triton_engine(triton.url, "stub", 5, options(SharedMemory.OFF))
    assert triton.asked == 0
    await engine.close()
