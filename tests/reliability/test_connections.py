"""Connections between the gateway and Triton that break or die, with an engine in this process."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.errors import EngineBadOutput, EngineUnavailable
from gateway.triton import open_triton_engine
from tests.fakes import TABLE
from tests.gateway.test_triton import CONFIG, batch_of, hidden_states
from tests.stub_triton import StubTriton, serve_stub


class Proxy:
    """Passes bytes on between the gateway and Triton, until it is told to break.

    Attributes:
        connections: how many were made.
        silent: whether bytes are swallowed.
    """

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0
        self.silent = False
        self.port = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.break_connections()

    def break_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._writers += [writer, there_writer]
        await asyncio.gather(self._pass_on(reader, there_writer), self._pass_on(there_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while received := await reader.read(65_536):
                if not self.silent:
                    writer.write(received)
        except ConnectionError:
            pass


@asynccontextmanager
async def proxied_stub() -> AsyncIterator[tuple[StubTriton, Proxy]]:
    async with (
        serve_stub(StubTriton(copy.deepcopy(CONFIG), hidden_states)) as stub,
        Proxy(stub.port).serve() as proxy,
    ):
        yield stub, proxy


async def test_a_call_whose_connection_breaks_is_made_once_more_on_another() -> None:
    async with proxied_stub() as (stub, proxy):
        engine = await open_triton_engine(f"127.0.0.1:{proxy.port}", "stub", 5)
        await engine.check_ready(5)
        stub.delay_s = 0.3
        call = asyncio.create_task(engine.infer(batch_of(2), 5))
        await until(lambda: len(stub.requests) == 1)
        proxy.break_connections()
        np.testing.assert_array_equal(await call, TABLE[batch_of(2).input_ids])
        assert len(stub.requests) == 2
        await engine.close()


async def test_not_more_than_once() -> None:
    async with proxied_stub() as (stub, proxy):
        engine = await open_triton_engine(f"127.0.0.1:{proxy.port}", "stub", 5)
        stub.delay_s = 20
        call = asyncio.create_task(engine.infer(batch_of(1), 30))
        for attempt in (1, 2):
            await until(lambda attempt=attempt: len(stub.requests) == attempt)
            proxy.break_connections()
        with pytest.raises(EngineUnavailable):
            await call
        assert len(stub.requests) == 2
        await engine.close()


async def test_a_connection_that_swallows_everything_is_given_up_with_its_calls() -> None:
    async with proxied_stub() as (stub, proxy):
        engine = await open_triton_engine(f"127.0.0.1:{proxy.port}", "stub", 5)
        await engine.infer(batch_of(1), 5)
        proxy.silent = True
        calls = [asyncio.create_task(engine.infer(batch_of(1), 30)) for _ in range(3)]
        await asyncio.sleep(0.1)
        proxy.silent = False  # for new connections; what was swallowed is lost
        await engine.reconnect()
        for call in calls:
            with pytest.raises(EngineUnavailable):
                await call
        np.testing.assert_array_equal(await engine.infer(batch_of(1), 5), TABLE[batch_of(1).input_ids])
        assert len(stub.requests) == 2
        await engine.close()


@pytest.mark.parametrize("length", [0, 4, 1000])
async def test_bytes_that_are_not_as_many_as_the_shape_says(length: int) -> None:
    class ShortOfBytes(StubTriton):
        async def ModelInfer(self, request: Any, context: Any) -> Any:
            response = service_pb2.ModelInferResponse(model_name="stub")
            response.outputs.add(name="last_hidden_state", datatype="FP32", shape=[1, 4, 8])
            response.raw_output_contents.append(b"\0" * length)
            return response

    async with serve_stub(ShortOfBytes(copy.deepcopy(CONFIG), hidden_states)) as stub:
        engine = await open_triton_engine(stub.url, "stub", 5)
        with pytest.raises(EngineBadOutput):
            await engine.infer(batch_of(1), 5)
        await engine.close()


async def until(condition: Any, timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
