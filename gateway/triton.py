"""Runs batches on Triton over gRPC. Built by app; with shared memory the only importer of tritonclient and grpc.

Foreign exceptions end here: everything that leaves this file is of `errors`.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gateway import contract
from gateway.errors import (
    EngineBadOutput,
    EngineRejected,
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
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_POLL_S = 0.25
_REASON_EVERY_S = 5.0
_CONFIG_TIMEOUT_S = 10.0


class TritonEngine:
    """One model on one Triton, as an `Engine`. Made by `open_triton_engine`."""

    def __init__(self, client: InferenceServerClient, spec: ModelSpec) -> None:
        self._client = client
        self._spec = spec
        self._outputs = [InferRequestedOutput(spec.output)]

    @property
    def spec(self) -> ModelSpec:
        """What the model said of itself when the engine was opened."""
        return self._spec

    async def infer(self, batch: Batch, timeout_s: float) -> Float32Array:
        """Run one batch; see `Engine.infer`. Cancelling the call cancels it at the server."""
        with _translated_errors():
            result = await self._client.infer(
                self._spec.name, self._tensors(batch), outputs=self._outputs, client_timeout=timeout_s
            )
        output = self._checked(result.as_numpy(self._spec.output), batch)
        return output.astype(np.float32, copy=False)

    async def check_ready(self, timeout_s: float) -> None:
        """Return when Triton has the model ready; see `Engine.check_ready`."""
        await _check_model_ready(self._client, self._spec.name, timeout_s)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

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

    def _checked(self, output: NDArray[np.floating[Any]] | None, batch: Batch) -> NDArray[np.floating[Any]]:
        rows, length = batch.input_ids.shape
        hidden_size = self._spec.hidden_size
        pooled = self._spec.output_kind is OutputKind.SENTENCE_EMBEDDING
        expected = (rows, hidden_size) if pooled else (rows, length, hidden_size)
        if output is None:
            raise EngineBadOutput("The engine's answer has no output tensor.")
        if output.shape != expected or output.dtype not in (np.float32, np.float16):
            raise EngineBadOutput(
                f"The engine answered {output.dtype} {list(output.shape)} instead of float32 {list(expected)}."
            )
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
        with _translated_errors():
            config = await client.get_model_config(model, as_json=True, client_timeout=_CONFIG_TIMEOUT_S)
        return TritonEngine(client, parse_model_spec(config["config"]))
    except GatewayError as error:
        await client.close()
        raise StartupError(f"Triton at {url} did not tell the configuration of {model}: {error}") from error
    except BaseException:
        await client.close()
        raise


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
    try:
        with _translated_errors():
            ready = await client.is_model_ready(model, client_timeout=timeout_s)
    except EngineTimeout:
        raise EngineUnavailable("Triton does not answer.") from None
    if not ready:
        raise EngineUnavailable("Triton has not loaded the model.")


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


def _translate(status: str, message: str) -> GatewayError:
    code = status.removeprefix("StatusCode.")
    if code == "DEADLINE_EXCEEDED" or "Request timeout expired" in message:
        return EngineTimeout("The engine did not answer before the request's deadline.")
    if "Exceeds maximum queue size" in message:
        return Overloaded("The engine's queue is full. Try again later.", retry_after_s=1)
    if code in ("UNAVAILABLE", "NOT_FOUND", "CANCELLED"):
        return EngineUnavailable("Triton cannot be reached, or has the model not ready.", retry_after_s=1)
    return EngineRejected(f"The engine refused the batch ({code}).")
