"""A real gateway process before a stub Triton, for what the real Triton cannot be made to do: refuse, sleep, lie."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format, text_format
from tokenizers import Tokenizer
from tritonclient.grpc import model_config_pb2

from gateway.pooling import normalize
from gateway.types import Float32Array
from tests.gateway_process import GatewayProcess, run_gateway
from tests.integration.triton_figures import DEMO_MODEL
from tests.stub_triton import Arrays, StubTriton, serve_stub

HIDDEN_SIZE = 384
VOCAB_SIZE = 30_522
TABLE = np.random.default_rng(0).standard_normal((VOCAB_SIZE, HIDDEN_SIZE)).astype(np.float32)
"""A token's embedding; the stub model's text embedding is their mean."""

FULL_QUEUE = (grpc.StatusCode.UNAVAILABLE, f"in ensemble: Exceeds maximum queue size for '{DEMO_MODEL}'")
DOWN = (grpc.StatusCode.UNAVAILABLE, "Socket closed")


@dataclass
class Stub(StubTriton):
    """A stub Triton that refuses its next inferences.

    Attributes:
        refusals: how many.
        refusal: with which status.
    """

    refusals: int = 0
    refusal: tuple[grpc.StatusCode, str] = FULL_QUEUE

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            await context.abort(*self.refusal)
        return await super().ModelInfer(request, context)

    def mend(self) -> None:
        """Answer rightly again."""
        self.status, self.delay_s, self.refusals, self.answer = None, 0.0, 0, answer


@dataclass(frozen=True)
class StubGateway:
    """A gateway and the stub behind it."""

    gateway: GatewayProcess
    triton: Stub
    tokenizer: Tokenizer

    @property
    def base_url(self) -> str:
        return f"{self.gateway.url}/v1"

    def vector(self, text: str) -> Float32Array:
        """Return the right answer to a text."""
        return _vector(self.tokenizer, text)


@contextmanager
def run_stub_gateway(
    model_repository: Path, folder: Path, prompts: dict[str, str] | None = None, **settings: Any
) -> Iterator[StubGateway]:
    """Start both on a copy of the demo model's directory whose manifest has the stub's vectors."""
    source, copy = model_repository / DEMO_MODEL, folder / "triton_repo" / DEMO_MODEL
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("1"))
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    manifest = json.loads((copy / "manifest.json").read_bytes())
    check = manifest["self_check"]
    check["embeddings"] = [_vector(tokenizer, text).tolist() for text in check["texts"]]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    message = text_format.Parse((copy / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    config = json_format.MessageToDict(message, preserving_proto_field_name=True)
    if prompts:
        config["parameters"]["embedding.prompts"] = {"string_value": json.dumps(prompts)}
    stub = Stub(config, answer)
    with (
        _serve_in_thread(stub),
        run_gateway(folder / "gateway.log", model_repository=copy.parent, triton_url=stub.url, **settings) as gateway,
    ):
        yield StubGateway(gateway, stub, tokenizer)


def answer(inputs: Arrays) -> Arrays:
    """Return each token's embedding, and nonsense at padded positions."""
    hidden = TABLE[inputs["input_ids"]]
    hidden[inputs["attention_mask"] == 0] = np.nan
    return {"last_hidden_state": hidden}


def _vector(tokenizer: Tokenizer, text: str) -> Float32Array:
    ids = tokenizer.encode(text).ids[:256]
    vector: Float32Array = normalize(TABLE[ids].mean(axis=0, dtype=np.float32)[None])[0]
    return vector


@contextmanager
def _serve_in_thread(stub: Stub) -> Iterator[None]:
    started, stop = Event(), Event()

    async def serve() -> None:
        async with serve_stub(stub):
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(10)
        yield
    finally:
        stop.set()
        thread.join()
