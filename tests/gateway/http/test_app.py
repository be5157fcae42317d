import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from starlette.types import ASGIApp, Message

from gateway.errors import StartupError
from gateway.http.app import route_template

if TYPE_CHECKING:
    from tests.gateway.http.conftest import Harness

SERVICE = """
    import asyncio, contextlib, sys
    import uvicorn
    from gateway.http.app import create_app
    from gateway.errors import StartupError
    from gateway.metrics import Metrics
    from gateway.settings import Settings

    @contextlib.asynccontextmanager
    async def open_registry():
        raise {error}
        yield

    app = create_app(Settings(), open_registry, Metrics())
    uvicorn.run(app, port=0, lifespan="on", loop="uvloop")
"""


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/v1/embeddings", "/v1/embeddings"),
        ("/v1/models", "/v1/models"),
        ("/v1/models/a/b", "/v1/models/{id}"),
        ("/health/live", "/health/live"),
        ("/health/ready", "/health/ready"),
        ("/metrics", "/metrics"),
        ("/docs", "/docs"),
        ("/openapi.json", "/openapi.json"),
        ("/", "/"),
        ("/no/such/path", "unmatched"),
        ("/v1/embeddings/x", "unmatched"),
    ],
)
def test_route_template(path: str, template: str) -> None:
    assert route_template(path) == template


def start(error: str) -> "subprocess.CompletedProcess[str]":
    code = textwrap.dedent(SERVICE.format(error=error))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_startup_error_is_one_line() -> None:
    ended = start("StartupError('Triton at 127.0.0.1:8001 does not answer')")
    assert ended.returncode == 3
    errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
    assert errors[0].endswith("cannot start: Triton at 127.0.0.1:8001 does not answer")
    assert errors[1:] == ["ERROR:    Application startup failed. Exiting."]
    assert "Traceback" not in ended.stderr


def test_another_exception_at_start_keeps_its_traceback() -> None:
    ended = start("ZeroDivisionError('a bug')")
    assert ended.returncode == 3
    assert "Traceback" in ended.stderr
    assert "ZeroDivisionError: a bug" in ended.stderr


async def test_the_lifespan_ends_cleanly(harness: "Harness") -> None:
    async with harness.server():
        pass


async def test_a_missing_keys_file_stops_the_start(harness: "Harness") -> None:
    app = harness.app(api_keys_file="/nonexistent")
    with pytest.raises(StartupError):
        async with app.router.lifespan_context(app):
            pass


async def run_lifespan(app: ASGIApp) -> list[Message]:
    """Start and stop an app; return what it told the server."""
    received: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return received.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "lifespan", "state": {}}, receive, send)
    return sent


async def test_what_the_server_is_told_of_a_startup_error(harness: "Harness") -> None:
    harness.startup_error = StartupError("no model")
    assert await run_lifespan(harness.app()) == [
        {"type": "lifespan.startup.failed", "message": "cannot start: no model"}
    ]


async def test_another_exception_at_start_is_passed_on(harness: "Harness") -> None:
    harness.startup_error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        await run_lifespan(harness.app())


async def test_what_the_server_is_told_of_a_good_start(harness: "Harness") -> None:
    messages = await run_lifespan(harness.app())
    assert [message["type"] for message in messages] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
