"""A Triton for what the real one cannot be made to do: sleep, refuse with a chosen status, answer bad tensors.

Everything else is tested against the real server. The protocol is Triton's own, from tritonclient's protobuf classes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass
class StubTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers ModelReady, ModelConfig and ModelInfer.

    Attributes:
        config: the ModelConfig message, as JSON.
        answer: makes the output tensors from the input tensors.
        status: if set, each inference is refused with this status and message.
        delay_s: how long each inference takes.
        ready: what ModelReady answers; None never answers.
        requests: the input tensors of each inference.
        cancelled: inferences that the client cancelled.
    """

    config: dict[str, Any]
    answer: Callable[[Arrays], Arrays]
    status: tuple[grpc.StatusCode, str] | None = None
    delay_s: float = 0.0
    ready: bool | None = True
    requests: list[Arrays] = field(default_factory=list)
    cancelled: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def ModelReady(self, request: Any, context: Any) -> Any:
        if self.ready is None:
            await asyncio.sleep(60)
        return service_pb2.ModelReadyResponse(ready=self.ready)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        config = json_format.ParseDict(self.config, model_config_pb2.ModelConfig())
        return service_pb2.ModelConfigResponse(config=config)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        dtypes = {"INT32": np.int32, "INT64": np.int64}
        inputs = {
            tensor.name: np.frombuffer(raw, dtypes[tensor.datatype]).reshape(tensor.shape)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        self.requests.append(inputs)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.status:
            await context.abort(*self.status)
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        for name, array in self.answer(inputs).items():
            response.outputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
            response.raw_output_contents.append(array.tobytes())
        return response


@asynccontextmanager
async def serve_stub(stub: StubTriton) -> AsyncIterator[StubTriton]:
    """Listen on a free port of the loopback interface."""
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=unlimited)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(stub, server)
    stub.port = server.add_insecure_port(stub.url)
    await server.start()
    try:
        yield stub
    finally:
        await server.stop(0)
