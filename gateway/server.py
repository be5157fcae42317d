"""Serves the app on a socket until it is told to stop. Called by __main__, or by each of its workers.

SIGTERM: ready says 503 at once, and for GATEWAY_DRAIN_S everything else goes on, each answer asking its caller to
leave the connection. Then the port is closed, what is under way is finished, and the models are closed. SIGINT, a
terminal's Ctrl-C, does not drain; a second one does not wait for what is under way either.
"""

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from gateway.errors import StartupError
from gateway.http.app import create_app
from gateway.http_protocol import HttpProtocol
from gateway.metrics import Metrics
from gateway.serving import open_registry, served_names
from gateway.settings import Settings, tracing_is_on

if TYPE_CHECKING:
    from gateway.tracing import Tracing

_log = logging.getLogger("gateway")

_KEEP_ALIVE_S = 75
"""Idle connections live longer than those of common proxies (60 s), which else reuse one that is just being closed."""
_BACKLOG = 2048
_HANG_UP_S = 2
"""How long requests may take to notice that their callers are gone."""
_SWITCH_INTERVAL_S = 0.0005
"""How long a worker thread may keep the interpreter lock that the event loop waits for. A short request asks for it ten
times or so, and would wait for Python's 5 ms each time while others are tokenized."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket of that address that does not listen yet: who connects before the models are open is refused.

    Raises:
        StartupError: the address is taken, or is none.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        place = f"GATEWAY_HOST {host}, GATEWAY_PORT {port}"
        raise StartupError(f"cannot listen on {place}: {error.strerror}") from error
    return listener


def serve(
    settings: Settings, listener: socket.socket, on_listening: Callable[[], None], metrics_folder: Path | None = None
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        settings: how it runs.
        listener: as `bind` made it.
        on_listening: called once it listens.
        metrics_folder: shared with other workers; None without them.

    Raises:
        StartupError: traces are asked for and cannot be made.
        SystemExit: the models could not be opened, or it was told to stop before.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    metrics = Metrics(served_names(settings), metrics_folder)
    stopping = Event()
    with _tracing() as tracing:
        app = create_app(settings, partial(open_registry, settings, metrics, stopping, tracing), metrics, tracing)
        Server(_config(settings, app), stopping, settings.drain_s, on_listening).run([listener])


@contextmanager
def _tracing() -> "Iterator[Tracing | None]":
    """Have tracing while the block runs, if it is on; what is left is sent at its end."""
    if not tracing_is_on():
        yield None
        return
    try:
        from gateway.tracing import open_tracing  # noqa: PLC0415 - not to be paid for where it is off
    except ImportError as error:
        raise StartupError(
            "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces: install the extra otel, as by `pip install -e '.[otel]'`"
        ) from error
    tracing = open_tracing()
    try:
        yield tracing
    finally:
        tracing.close()


class Server(uvicorn.Server):
    """uvicorn, with a time between being told to stop and closing the port.

    Args:
        config: uvicorn's.
        stopping: set when it is told to stop.
        drain_s: that time, seconds.
        on_listening: called once it listens.
    """

    def __init__(
        self, config: uvicorn.Config, stopping: Event, drain_s: float, on_listening: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._drain_s = drain_s
        self._on_listening = on_listening
        self._interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the models, then listen."""
        await super().startup(sockets)
        # What the start has made lives on: a full collection that goes through it stops the event loop for 50 to 80 ms.
        gc.collect()
        gc.freeze()
        self._on_listening()

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """Stop; at once if nothing is served yet, and without draining when a terminal asks.

        uvicorn's own would raise each signal once more after the shutdown, in the middle of its coroutine.
        """
        if not self.started:
            raise SystemExit(0)
        if sig == signal.SIGINT:
            self.force_exit = self._interrupted
            self._interrupted = True
            self._drain_s = 0
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close the port and finish what is under way."""
        self._stopping.set()
        self.server_state.default_headers.append((b"connection", b"close"))
        _log.info("stopping: not ready from now on, the port closes in %g s", self._drain_s)
        started = time.monotonic()
        while time.monotonic() < started + self._drain_s:  # noqa: ASYNC110 - a signal handler shortens it
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)
        if self.force_exit:
            await self._hang_up()
            await self.lifespan.shutdown()

    async def _hang_up(self) -> None:
        """Leave the callers whose answers are not waited for; that cancels their requests as if they had left."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=_HANG_UP_S)


def _config(settings: Settings, app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="uvloop",
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=graceful_shutdown_s(settings),
    )


def graceful_shutdown_s(settings: Settings) -> int:
    """Return how long requests under way may take once the port is closed: as long as any may."""
    return math.ceil(settings.request_timeout_s)
