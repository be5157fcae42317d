"""A stand-in for Triton whose engine takes no processor: what is slow before it is the gateway's own doing.

Each call takes a fixed time, as on an idle GPU, and answers token embeddings of the demo model's shape, every token's
the same. The gateway accepts it: the copy of the model directory that it is started on has these vectors as its check.
"""

import asyncio
import json
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from bench.models import DEMO_MODEL
from bench.processes import Server, run_gateway
from tests.stub_triton import Arrays, StubTriton, serve_stub

CALL_S = 0.005
_HIDDEN_SIZE = 384
_MOST_TOKENS = 16_384
_VECTOR = np.full(_HIDDEN_SIZE, _HIDDEN_SIZE**-0.5, np.float32)


@contextmanager
def run_gateway_on_stand_in(repository: Path, module: str, **settings: object) -> Iterator[Server]:
    """Run a module around the gateway on the stand-in, in processes of their own."""
    context = get_context("spawn")  # gRPC does not survive a fork
    pipe, its_end = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy_with_its_vectors(repository / DEMO_MODEL.name, Path(folder))
        process = context.Process(target=_serve, args=(copy / "config.pbtxt", its_end))
        process.start()
        try:
            url = pipe.recv()
            with run_gateway(copy.parent, module, embedded_triton="false", triton_url=url, **settings) as server:
                yield server
        finally:
            process.terminate()
            process.join()


def _copy_with_its_vectors(source: Path, folder: Path) -> Path:
    copy = folder / source.name
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("1"))
    manifest = json.loads((copy / "manifest.json").read_bytes())
    check = manifest["self_check"]
    check["embeddings"] = [_VECTOR.tolist()] * len(check["texts"])
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def _serve(config_file: Path, pipe: Connection) -> None:
    """Serve until terminated; say at which address."""
    message = text_format.Parse(config_file.read_text(), model_config_pb2.ModelConfig())
    config = json_format.MessageToDict(message, preserving_proto_field_name=True)
    hidden = np.tile(_VECTOR, (_MOST_TOKENS, 1))

    def answer(inputs: Arrays) -> Arrays:
        rows, length = inputs["input_ids"].shape
        return {"last_hidden_state": hidden[: rows * length].reshape(rows, length, _HIDDEN_SIZE)}

    async def serve() -> None:
        stub = StubTriton(config, answer, delay_s=CALL_S, requests=deque(maxlen=0))  # keeps none of them
        async with serve_stub(stub):
            pipe.send(stub.url)
            await asyncio.Event().wait()

    asyncio.run(serve())
