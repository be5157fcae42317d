"""An app with a stub model, reached in process or through a real server."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.embedder import Embedder
from gateway.errors import EngineUnavailable
from gateway.http.app import create_app
from gateway.metrics import Metrics
from gateway.registry import Registry, ServedModel
from gateway.settings import Settings
from gateway.tracing import RequestTrace
from gateway.types import EmbeddingResult, Float32Array, Inputs, Timings, Truncate

MODEL = "acme/stub-model"
ALIAS = "stub"
DIMENSIONS = 8


def vector_of(one_input: str | list[int], dimensions: int = DIMENSIONS) -> Float32Array:
    """Return a vector that is the input's own, so that a wrong order shows."""
    ids = [ord(character) for character in one_input] if isinstance(one_input, str) else one_input
    generator = np.random.default_rng([len(ids), *ids])
    return generator.standard_normal(dimensions).astype(np.float32)


class StubEmbedder(Embedder):
    """Answers from the inputs alone.

    Attributes:
        calls: the arguments of each call.
        error: raised instead of an answer.
        delay_s: how long an answer takes.
        truncated: how many inputs it says it cut.
        unready: why check_ready raises.
        hang: check_ready never returns, and does not let itself be cancelled.
        cancelled: calls that were cancelled.
    """

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self.dimensions = dimensions
        self.calls: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.delay_s = 0.0
        self.truncated = 0
        self.unready: str | None = None
        self.hang = False
        self.cancelled = 0

    async def embed(
        self,
        inputs: Inputs,
        *,
        timeout_s: float,
        dimensions: int | None = None,
        truncate: Truncate = Truncate.NONE,
        input_type: str | None = None,
        trace: RequestTrace | None = None,
    ) -> EmbeddingResult:
        self.calls.append(
            {
                "inputs": inputs,
                "timeout_s": timeout_s,
                "dimensions": dimensions,
                "truncate": truncate,
                "input_type": input_type,
            }
        )
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        rows = np.stack([vector_of(one_input, self.dimensions) for one_input in inputs])
        tokens = sum(len(one_input) + 2 for one_input in inputs)
        return EmbeddingResult(rows[:, :dimensions], tokens, self.truncated, Timings(0.0001, 0.02, 3.0, 0.4))

    async def check_ready(self, timeout_s: float) -> None:
        while self.hang:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.hang = False
        if self.unready is not None:
            raise EngineUnavailable(self.unready)


class Harness:
    """Builds apps around one stub model, and serves them."""

    def __init__(self) -> None:
        self.embedder = StubEmbedder()
        self.metrics = Metrics([MODEL])
        self.startup_error: Exception | None = None

    @asynccontextmanager
    async def open_registry(self) -> AsyncIterator[Registry]:
        if self.startup_error is not None:
            raise self.startup_error
        yield Registry([ServedModel(MODEL, self.embedder, 1_700_000_000, "fp16")], {ALIAS: MODEL})

    def app(self, **settings: Any) -> FastAPI:
        return create_app(Settings(**settings), self.open_registry, self.metrics)

    @asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a client of an app in this process, with its lifespan running."""
        app = self.app(**settings)
        async with app.router.lifespan_context(app) as state:
            transport = httpx.ASGITransport(_with_state(app, dict(state or {})))
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                yield client

    @asynccontextmanager
    async def server(self, **settings: Any) -> AsyncIterator[int]:
        """Yield the port of a real server on this event loop."""
        config = uvicorn.Config(
            self.app(**settings), http="httptools", ws="none", lifespan="on", log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            task = asyncio.create_task(server.serve([listener]))
            try:
                while not server.started:
                    assert not task.done()
                    await asyncio.sleep(0.01)
                yield listener.getsockname()[1]
            finally:
                server.should_exit = True
                await task

    def sample(self, name: str, **labels: str) -> float:
        """Return the value of a metric, 0 if it has none."""
        return self.metrics.registry.get_sample_value(f"gateway_{name}", labels) or 0.0


def _with_state(app: ASGIApp, state: dict[str, Any]) -> ASGIApp:
    async def app_with_state(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return app_with_state


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own settings out."""
    for name in list(os.environ):
        if name.startswith("GATEWAY_"):
            monkeypatch.delenv(name)


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[httpx.AsyncClient]:
    async with harness.client() as client:
        yield client
