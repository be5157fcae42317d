"""Runs batches on Triton over gRPC. Built by app; with shared memory the only importer of tritonclient and grpc.

Foreign exceptions end here: everything that leaves this file is of `errors`.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from grpc.aio import UsageError
from numpy.typing import NDArray
from tritonclient.grpc import InferInput, InferRequestedOutput, InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gateway import contract
from gateway.errors import (
    EngineBadOutput,
    EngineRejected,
    EngineSilent,
    EngineTimeout,
    EngineUnavailable,
    GatewayError,
    Overloaded,
    StartupError,
)
from gateway.model_spec import parse_model_spec
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


class TritonEngine:
    """One model on one Triton, as an `Engine`. Made by `open_triton_engine`.

    Calls go over one connection; a second one, idle else, takes those that the first one lost.
    """

    def __init__(self, url: str, spec: ModelSpec) -> None:
        self._url = url
        self._spec = spec
        self._outputs = [InferRequestedOutput(spec.output)]
        self._clients = _connect(url)

    @property
    def spec(self) -> ModelSpec:
        """What the model said of itself when the engine was opened."""
        return self._spec

    async def infer(self, batch: Batch, timeout_s: float) -> Float32Array:
        """Run one batch; see `Engine.infer`. Cancelling the call cancels it at the server."""
        tensors = self._tensors(batch)
        deadline = asyncio.get_running_loop().time() + timeout_s
        clients = first, second = self._clients
        try:
            result = await self._call(first, tensors, timeout_s)
        except EngineUnavailable:
            # Inference may be repeated. But where connections were given up, Triton is not worth another wait.
            if self._clients is not clients:
                raise
            result = await self._call(second, tensors, deadline - asyncio.get_running_loop().time())
        return self._checked(result, batch).astype(np.float32, copy=False)

    async def check_ready(self, timeout_s: float) -> None:
        """Return when Triton has the model ready and unchanged; see `Engine.check_ready`."""
        client = self._clients[0]
        await _check_model_ready(client, self._spec.name, timeout_s)
        try:
            if await _read_spec(client, self._spec.name, timeout_s) == self._spec:
                return
        except StartupError as error:
            raise EngineUnavailable(f"The model on Triton was changed: {error}.") from error
        raise EngineUnavailable("The model on Triton was changed: restart the gateway to serve it as it is now.")

    async def reconnect(self) -> None:
        """Give all connections up, dead ones that nobody noticed too; see `Engine.reconnect`."""
        given_up, self._clients = self._clients, _connect(self._url)
        for client in given_up:
            await client.close()

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.close()

    async def _call(self, client: InferenceServerClient, tensors: list[InferInput], timeout_s: float) -> InferResult:
        with _translated_errors():
            return await client.infer(
                self._spec.name, tensors, outputs=self._outputs, client_timeout=max(timeout_s, _LEAST_TIMEOUT_S)
            )

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

    def _checked(self, result: InferResult, batch: Batch) -> NDArray[np.floating[Any]]:
        rows, length = batch.input_ids.shape
        hidden_size = self._spec.hidden_size
        pooled = self._spec.output_kind is OutputKind.SENTENCE_EMBEDDING
        expected = (rows, hidden_size) if pooled else (rows, length, hidden_size)
        output = _read_output(result, self._spec.output)
        if output.shape != expected or output.dtype not in (np.float32, np.float16):
            raise EngineBadOutput(
                f"The engine answered {output.dtype} {list(output.shape)} instead of float32 {list(expected)}."
            )
        return output


def _read_output(result: InferResult, name: str) -> NDArray[np.floating[Any]]:
    try:
        output: NDArray[np.floating[Any]] | None = result.as_numpy(name)
    except (ValueError, TypeError, InferenceServerException) as error:
        raise EngineBadOutput("The engine's answer has not as many bytes as its shape and dtype say.") from error
    if output is None:
        raise EngineBadOutput("The engine's answer has no output tensor.")
    return output


async def open_triton_engine(url: str, model: str, timeout_s: float) -> TritonEngine:
    """Wait until Triton has the model ready, and read what it says of itself.

    Args:
        url: Triton's gRPC endpoint.
        model: Triton's name of the model.
        timeout_s: longest wait, seconds; the reason for waiting is logged every few seconds.

    Raises:
        StartupError: the model was not ready in time, or does not keep the contract.
    """
    client = InferenceServerClient(url, channel_args=_CHANNEL_ARGS)
    try:
        await _wait_ready(client, url, model, timeout_s)
        return TritonEngine(url, await _read_spec(client, model, _CONFIG_TIMEOUT_S))
    except GatewayError as error:
        raise StartupError(f"Triton at {url} did not tell the configuration of {model}: {error}") from error
    finally:
        await client.close()


def _connect(url: str) -> tuple[InferenceServerClient, InferenceServerClient]:
    first, second = (InferenceServerClient(url, channel_args=_CHANNEL_ARGS) for _ in range(2))
    return first, second


async def _read_spec(client: InferenceServerClient, model: str, timeout_s: float) -> ModelSpec:
    with _translated_questions():
        config = await client.get_model_config(model, as_json=True, client_timeout=timeout_s)
    return parse_model_spec(config["config"])


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
                _log.info("waiting for model %s on Triton at %s: %s", model, url, error)
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
    if "Exceeds maximum queue size" in message:
        return Overloaded("The engine's queue is full. Try again later.", retry_after_s=1)
    if code in ("UNAVAILABLE", "NOT_FOUND", "CANCELLED"):
        return EngineUnavailable("Triton cannot be reached, or has the model not ready.", retry_after_s=1)
    return EngineRejected(f"The engine refused the batch ({code}).")
