"""A model on a running Triton, to be verified over gRPC. Called by cli for `verify --triton`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from engine_build.errors import EngineError
from engine_build.vectors import BatchRun
from gateway.contract import ATTENTION_MASK, INPUT_IDS, LAST_HIDDEN_STATE, SENTENCE_EMBEDDING

INPUT_DTYPES = {"INT32": np.int32, "INT64": np.int64}
TIMEOUT_S = 120.0


@contextmanager
def open_triton_model(url: str, name: str) -> Iterator[BatchRun]:
    """Connect, and give a function that runs batches on the model.

    Raises:
        EngineError: Triton cannot be reached, has not the model ready, or refuses a batch; the message is Triton's.
    """
    client = grpc.InferenceServerClient(url)
    try:
        with _translated(url, name):
            metadata = client.get_model_metadata(name, client_timeout=TIMEOUT_S)
        dtypes = {tensor.name: INPUT_DTYPES[tensor.datatype] for tensor in metadata.inputs}
        (output,) = [t.name for t in metadata.outputs if t.name in (LAST_HIDDEN_STATE, SENTENCE_EMBEDDING)]

        def run(input_ids: Any, attention_mask: Any) -> Any:
            arrays = {INPUT_IDS: input_ids, ATTENTION_MASK: attention_mask}
            inputs = [_tensor(key, array.astype(dtypes[key], copy=False)) for key, array in arrays.items()]
            with _translated(url, name):
                answer = client.infer(
                    name, inputs, outputs=[grpc.InferRequestedOutput(output)], client_timeout=TIMEOUT_S
                )
            return answer.as_numpy(output)

        yield run
    finally:
        client.close()


def _tensor(name: str, array: Any) -> Any:
    tensor = grpc.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


@contextmanager
def _translated(url: str, name: str) -> Iterator[None]:
    try:
        yield
    except InferenceServerException as exc:
        raise EngineError(f"{name} on Triton at {url}: {exc.message()}") from exc
