"""Runs batches on Triton over gRPC, their outputs through shared memory where that works. Built by app.

Foreign exceptions end here: everything that leaves this file is of `errors`.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from grpc.aio import UsageError
from numpy.typing import NDArray
from tritonclient.grpc import InferInput, InferRequestedOutput, InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

from gateway import contract
from gateway.errors import (
    EngineBadOutput,
    EngineRejected,
    EngineSilent,
    EngineTimeout,
    EngineUnavailable,
    ExceededLimit,
    GatewayError,
    Overloaded,
    StartupError,
)
from gateway.model_spec import parse_model_spec
from gateway.output_slots import OutputSlots, Region, RegionsLost
from gateway.shared_memory import BYTES_PER_VALUE, SharedMemoryOptions, open_output_slots
from gateway.types import Batch, Float32Array, ModelSpec, OutputKind

_log = logging.getLogger(__name__)

_CHANNEL_ARGS = [
    # tritonclient lifts gRPC's 4 MiB limit only when no options of one's own are passed. -1 = no limit.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # By default gRPC waited 6.9 s longer after Triton had been down for 10 s (observed, Triton 2.51).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # In spite of its name: how long one attempt to connect may take. 20 s by default, which calls would wait for.
    ("grpc.min_reconnect_backoff_ms", 1000),
    # Else all channels to one address share one connection.
    ("grpc.use_local_subchannel_pool", 1),
]
_POLL_S = 0.25
_REASON_EVERY_S = 5.0
_CONFIG_TIMEOUT_S = 10.0
_LEAST_TIMEOUT_S = 0.001


@dataclass(frozen=True, slots=True)
class _Request:
    """One batch as each try to run it sends it."""

    batch: Batch
    tensors: list[InferInput]
    headers: Mapping[str, str] | None


class TritonEngine:
    """One model on one Triton, as an `Engine`. Made by `open_triton_engine`.

    Calls go over one connection; a second one, idle else, takes those that the first one lost.

    Args:
        url: its gRPC endpoint.
        spec: what the model says of itself.
        slots: shared memory for the outputs; None if they travel over gRPC.
    """

    def __init__(self, url: str, spec: ModelSpec, slots: OutputSlots | None = None) -> None:
        self._url = url
        self._spec = spec
        self._slots = slots
        self._clients = _connect(url)

    @property
    def spec(self) -> ModelSpec:
        """What the model said of itself when the engine was opened."""
        return self._spec

    async def infer(self, batch: Batch, timeout_s: float, headers: Mapping[str, str] | None = None) -> Float32Array:
        """Run one batch; see `Engine.infer`. Cancelling the call cancels it at the server."""
        request = _Request(batch, self._tensors(batch), headers)
        deadline = asyncio.get_running_loop().time() + timeout_s
        clients = first, second = self._clients
        try:
            output = await self._call(first, request, timeout_s)
        except EngineUnavailable:
            # Inference may be repeated. But where connections were given up, Triton is not worth another wait.
            if self._clients is not clients:
                raise
            output = await self._call(second, request, deadline - asyncio.get_running_loop().time())
        return output.astype(np.float32, copy=False)

    async def check_ready(self, timeout_s: float) -> None:
        """Return when Triton has the model ready and unchanged; see `Engine.check_ready`."""
        client = self._clients[0]
        await _check_model_ready(client, self._spec.name, timeout_s)
        try:
            found = await _read_spec(client, self._spec.name, timeout_s)
        except StartupError as error:
            raise EngineUnavailable(f"The model on Triton was changed: {error}.") from error
        if found != self._spec:
            change = _describe_change(self._spec, found)
            raise EngineUnavailable(f"The model on Triton has {change}: restart the gateway to serve it as it is now.")
        if self._slots:
            with _translated_questions():
                await self._slots.unregister_retired(client, timeout_s)

    async def reconnect(self) -> None:
        """Give all connections up, dead ones that nobody noticed too; see `Engine.reconnect`."""
        given_up, self._clients = self._clients, _connect(self._url)
        for client in given_up:
            await client.close()

    async def close(self) -> None:
        """Give the shared memory up, and close the connections."""
        if self._slots:
            await self._slots.close(self._clients[0])
        for client in self._clients:
            await client.close()

    async def _call(
        self, client: InferenceServerClient, request: _Request, timeout_s: float
    ) -> NDArray[np.floating[Any]]:
        """Make one call over that connection; once more if Triton has forgotten the shared memory meanwhile."""
        try:
            return await self._call_once(client, request, timeout_s)
        except RegionsLost:
            return await self._call_once(client, request, timeout_s)

    async def _call_once(
        self, client: InferenceServerClient, request: _Request, timeout_s: float
    ) -> NDArray[np.floating[Any]]:
        timeout_s = max(timeout_s, _LEAST_TIMEOUT_S)
        output = InferRequestedOutput(self._spec.output)
        byte_size = request.batch.input_ids.size * self._spec.hidden_size * BYTES_PER_VALUE
        with _translated_errors():
            async with self._slots.lease(client, byte_size, timeout_s) if self._slots else nullcontext() as region:
                if region:
                    output.set_shared_memory(region.name, byte_size)
                result = await client.infer(
                    self._spec.name,
                    request.tensors,
                    outputs=[output],
                    client_timeout=timeout_s,
                    headers=request.headers,
                )
                return self._checked(result, region, request.batch)

    def _tensors(self, batch: Batch) -> list[InferInput]:
        arrays = {contract.INPUT_IDS: batch.input_ids, contract.ATTENTION_MASK: batch.attention_mask}
        if contract.TOKEN_TYPE_IDS in self._spec.inputs:
            arrays[contract.TOKEN_TYPE_IDS] = np.zeros_like(batch.input_ids)
        tensors = []
        for name, dtype in self._spec.inputs.items():
            tensor = InferInput(name, batch.input_ids.shape, np_to_triton_dtype(dtype))
            tensor.set_data_from_numpy(arrays[name].astype(dtype, copy=False))
            tensors.append(tensor)
        return tensors

    def _checked(self, result: InferResult, region: Region | None, batch: Batch) -> NDArray[np.floating[Any]]:
        rows, length = batch.input_ids.shape
        hidden_size = self._spec.hidden_size
        pooled = self._spec.output_kind is OutputKind.SENTENCE_EMBEDDING
        expected = (rows, hidden_size) if pooled else (rows, length, hidden_size)
        output = self._read_output(result, region)
        if output.shape != expected or output.dtype not in (np.float32, np.float16):
            raise EngineBadOutput(
                f"The engine answered {output.dtype} {list(output.shape)} instead of float32 {list(expected)}."
            )
        return output

    def _read_output(self, result: InferResult, region: Region | None) -> NDArray[np.floating[Any]]:
        name = self._spec.output
        try:
            if region and (tensor := result.get_output(name)):
                return region.view(triton_to_np_dtype(tensor.datatype), tuple(tensor.shape))
            output: NDArray[np.floating[Any]] | None = result.as_numpy(name)
        except (ValueError, TypeError, InferenceServerException) as error:
            raise EngineBadOutput("The engine's answer has not as many bytes as its shape and dtype say.") from error
        if output is None:
            raise EngineBadOutput("The engine's answer has no output tensor.")
        return output


async def open_triton_engine(
    url: str, model: str, timeout_s: float, shared_memory: SharedMemoryOptions | None = None
) -> TritonEngine:
    """Wait until Triton has the model ready, and read what it says of itself.

    Args:
        url: Triton's gRPC endpoint.
        model: Triton's name of the model.
        timeout_s: longest wait, seconds; the reason for waiting is logged every few seconds.
        shared_memory: whether the outputs travel through it; None: they do not.

    Raises:
        StartupError: the model was not ready in time, does not keep the contract, or shared memory was asked for and
            cannot be had.
    """
    client = InferenceServerClient(url, channel_args=_CHANNEL_ARGS)
    try:
        await _wait_ready(client, url, model, timeout_s)
        spec = await _read_spec(client, model, _CONFIG_TIMEOUT_S)
        with _translated_questions():
            slots = await open_output_slots(client, spec, shared_memory) if shared_memory else None
        return TritonEngine(url, spec, slots)
    except GatewayError as error:
        raise StartupError(f"Triton at {url} did not tell the configuration of {model}: {error}") from error
    finally:
        await client.close()


async def read_model_spec(url: str, model: str, timeout_s: float) -> ModelSpec:
    """Ask a Triton once what the model says of itself.

    Raises:
        EngineUnavailable: it cannot be reached, or has not the model ready.
        StartupError: the model does not keep the contract.
    """
    client = InferenceServerClient(url, channel_args=_CHANNEL_ARGS)
    try:
        await _check_model_ready(client, model, timeout_s)
        return await _read_spec(client, model, timeout_s)
    finally:
        await client.close()


def _connect(url: str) -> tuple[InferenceServerClient, InferenceServerClient]:
    first, second = (InferenceServerClient(url, channel_args=_CHANNEL_ARGS) for _ in range(2))
    return first, second


async def _read_spec(client: InferenceServerClient, model: str, timeout_s: float) -> ModelSpec:
    with _translated_questions():
        config = await client.get_model_config(model, as_json=True, client_timeout=timeout_s)
    return parse_model_spec(config["config"])


def _describe_change(served: ModelSpec, found: ModelSpec) -> str:
    names = [one.name for one in fields(ModelSpec) if getattr(served, one.name) != getattr(found, one.name)]
    return ", ".join(f"{name} {getattr(found, name)} instead of {getattr(served, name)}" for name in names)


async def _wait_ready(client: InferenceServerClient, url: str, model: str, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    next_log = started + 1.0
    while True:
        try:
            return await _check_model_ready(client, model, _POLL_S * 4)
        except EngineUnavailable as error:
            now = loop.time()
            if now - started > timeout_s:
                reason = f"model {model} was not ready on Triton at {url} within {timeout_s:g} s: {error}"
                raise StartupError(reason) from error
            if now >= next_log:
                _log.info("waiting for model %s on Triton at %s (GATEWAY_TRITON_URL): %s", model, url, error)
                next_log = now + _REASON_EVERY_S
        await asyncio.sleep(_POLL_S)


async def _check_model_ready(client: InferenceServerClient, model: str, timeout_s: float) -> None:
    with _translated_questions():
        ready = await client.is_model_ready(model, client_timeout=timeout_s)
    if not ready:
        raise EngineUnavailable("Triton has not loaded the model.")


@contextmanager
def _translated_questions() -> Iterator[None]:
    """Turn tritonclient's exceptions into ours, where Triton is asked something that takes it no time."""
    try:
        with _translated_errors():
            yield
    except EngineTimeout:
        raise EngineSilent("Triton does not answer.") from None


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn tritonclient's one exception into ours.

    A full queue, an expired queue time, a model that is not ready and a dead server are all UNAVAILABLE; only the
    message tells them apart (observed, Triton 2.51).
    """
    try:
        yield
    except InferenceServerException as error:
        raise _translate(error.status() or "", error.message() or "") from error
    except (asyncio.CancelledError, UsageError):
        # Closing a connection cancels its calls, without anybody cancelling the task, and refuses new ones.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise EngineUnavailable("Triton does not answer.", retry_after_s=1) from None


def _translate(status: str, message: str) -> GatewayError:
    code = status.removeprefix("StatusCode.")
    if code == "DEADLINE_EXCEEDED" or "Request timeout expired" in message:
        return EngineTimeout("The engine did not answer before the request's deadline.")
    if "shared memory size specified with the request" in message:
        return EngineBadOutput("The engine's answer is larger than it was asked for.")
    if "Exceeds maximum queue size" in message:
        return Overloaded("The engine's queue is full. Try again later.", ExceededLimit.TRITON_QUEUE, retry_after_s=1)
    if code in ("UNAVAILABLE", "NOT_FOUND", "CANCELLED"):
        return EngineUnavailable("Triton cannot be reached, or has the model not ready.", retry_after_s=1)
    return EngineRejected(f"The engine refused the batch ({code}).")
