"""What a Triton gives to clients that only send token ids: the measure for the gateway.

Several processes, started once, that make calls of one shape whenever they are told to. Each call's answer becomes unit
vectors, as the gateway's: token embeddings are pooled, over gRPC or straight from system shared memory.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton_grpc
from threadpoolctl import threadpool_limits
from tritonclient.utils import shared_memory

from gateway.contract import Pooling
from gateway.pooling import normalize, pool

_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True)
class Calls:
    """Which calls are made.

    Attributes:
        grpc: Triton's host:port.
        model: its model.
        output: the output's name.
        hidden_size: H.
        per_token: whether the output is [B,S,H] instead of [B,H].
        vocabulary: token ids are drawn below it.
        rows: B.
        length: S.
        shared_memory: take [B,S,H] from system shared memory.
    """

    grpc: str
    model: str
    output: str
    hidden_size: int
    per_token: bool
    vocabulary: int
    rows: int
    length: int
    shared_memory: bool


@dataclass(frozen=True)
class Order:
    """How many calls at once, for how long."""

    concurrent: int
    seconds: float


class BareClients:
    """The processes. Made by `bare_clients`."""

    def __init__(self, pipes: list[Connection], rows: int) -> None:
        self._pipes = pipes
        self._rows = rows

    def texts_s(self, processes: int, concurrent: int, seconds: float) -> float:
        """Let some of the processes make that many calls at once each; return their rows a second together.

        Raises:
            RuntimeError: a call failed.
        """
        pipes = self._pipes[:processes]
        for pipe in pipes:
            pipe.send(Order(concurrent, seconds))
        answers = [pipe.recv() for pipe in pipes]
        if failures := [answer for answer in answers if isinstance(answer, str)]:
            raise RuntimeError(f"a bare client failed: {failures[0]}")
        return float(self._rows * sum(answers))


@contextmanager
def bare_clients(calls: Calls, processes: int) -> Iterator[BareClients]:
    """Start that many processes, and end them with the block."""
    context = get_context("spawn")  # gRPC does not survive a fork
    pairs = [context.Pipe() for _ in range(processes)]
    started = [context.Process(target=_work, args=(calls, theirs), daemon=True) for _, theirs in pairs]
    for process in started:
        process.start()
    try:
        for ours, _ in pairs:
            ours.recv()  # its libraries are imported
        yield BareClients([ours for ours, _ in pairs], calls.rows)
    finally:
        for process in started:
            process.terminate()
            process.join()


def _work(calls: Calls, pipe: Connection) -> None:
    """Be a client process: answer each order with calls a second, or the text of a failure."""
    with threadpool_limits(1, user_api="blas"):
        pipe.send(True)
        while True:
            order = pipe.recv()
            try:
                pipe.send(asyncio.run(_call_for(calls, order)))
            except Exception as error:  # noqa: BLE001 - told to the one who ordered
                pipe.send(f"{type(error).__name__}: {error}")


async def _call_for(calls: Calls, order: Order) -> float:
    async with triton_grpc.InferenceServerClient(calls.grpc, channel_args=_UNLIMITED) as client:
        begun = time.perf_counter()
        made = await asyncio.gather(*(_call(client, calls, begun + order.seconds) for _ in range(order.concurrent)))
        return sum(made) / (time.perf_counter() - begun)


async def _call(client: Any, calls: Calls, end: float) -> int:
    """Call one after the other until the time has come; return how many calls it made."""
    mask = np.ones((calls.rows, calls.length), np.int32)
    ids = np.random.default_rng().integers(5, calls.vocabulary, mask.shape, np.int32)
    inputs = [triton_grpc.InferInput(name, mask.shape, "INT32") for name in ("input_ids", "attention_mask")]
    for tensor, array in zip(inputs, (ids, mask), strict=True):
        tensor.set_data_from_numpy(array)
    made = 0
    async with _output(client, calls) as (output, region):
        while time.perf_counter() < end:
            result = await client.infer(calls.model, inputs, outputs=[output])
            vectors = result.as_numpy(calls.output) if region is None else region
            normalize(pool(vectors, mask, Pooling.MEAN) if calls.per_token else vectors)
            made += 1
    return made


@asynccontextmanager
async def _output(client: Any, calls: Calls) -> AsyncIterator[tuple[Any, Any]]:
    """Ask for the output; with shared memory also return it, float32 [B,S,H], written anew by each call."""
    output = triton_grpc.InferRequestedOutput(calls.output)
    if not calls.shared_memory:
        yield output, None
        return
    name, size = f"bare_{uuid.uuid4().hex}", 4 * calls.rows * calls.length * calls.hidden_size
    region = shared_memory.create_shared_memory_region(name, f"/{name}", size)
    try:
        await client.register_system_shared_memory(name, f"/{name}", size)
        output.set_shared_memory(name, size)
        shape = (calls.rows, calls.length, calls.hidden_size)
        yield output, shared_memory.get_contents_as_numpy(region, np.float32, shape)
        await client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(region)
