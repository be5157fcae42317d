"""Starts the gateway: settings, logs, the embedded Triton if asked for, then uvicorn. `python -m gateway`."""

import logging
import signal
import socket
import sys
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import NoReturn

import uvicorn
from pydantic import ValidationError

from gateway.embedded import EmbeddedTriton
from gateway.errors import StartupError
from gateway.http.app import create_app
from gateway.logs import configure_logging
from gateway.metrics import Metrics
from gateway.serving import open_registry, served_names
from gateway.settings import Settings

_log = logging.getLogger("gateway")

_KEEP_ALIVE_S = 75
"""Idle connections live longer than those of common proxies (60 s), which else reuse one that is just being closed."""
_GRACEFUL_SHUTDOWN_S = 30


def main() -> int:
    """Run until SIGINT or SIGTERM; return the exit code."""
    try:
        settings = Settings()
    except ValidationError as error:
        configure_logging("info", "text")
        for problem in error.errors(include_url=False, include_input=False):
            field = "_".join(map(str, problem["loc"][:1])).upper()
            _log.critical("GATEWAY_%s: %s", field, problem["msg"])
        return 2
    configure_logging(settings.log_level, settings.log_format)
    # Raised by uvicorn once more after it has shut down; the default handler would end the process at once.
    signal.signal(signal.SIGTERM, _exit)
    try:
        return _serve(settings)
    except StartupError as error:
        _log.critical("cannot start: %s", error)
        return 1
    except KeyboardInterrupt:
        return 0


def _exit(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _serve(settings: Settings) -> int:
    models = served_names(settings)
    metrics = Metrics(models)
    welcome = ""
    with ExitStack() as stack:
        if settings.embedded_triton:
            triton = stack.enter_context(_embedded_triton(settings))
            _log.info("starting Triton on %s", settings.model_repository)
            triton.wait_ready(settings.startup_timeout_s)
            _log.info("Triton is ready: gRPC %s, HTTP %s", triton.grpc_url, triton.http_url)
            settings = settings.model_copy(update={"triton_url": triton.grpc_url})
            welcome = _welcome(f"http://{settings.host}:{settings.port}", models[0], triton.metrics_url)
        app = create_app(settings, partial(open_registry, settings, metrics), metrics)
        server = _Server(_uvicorn_config(settings, app), welcome)
        server.run()
        return 0 if server.started else 1


class _Server(uvicorn.Server):
    """Logs `welcome` once it listens."""

    def __init__(self, config: uvicorn.Config, welcome: str) -> None:
        super().__init__(config)
        self._welcome = welcome

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the models, then listen."""
        await super().startup(sockets)
        if self.started and self._welcome:
            _log.info("%s", self._welcome)


def _welcome(url: str, model: str, triton_metrics: str) -> str:
    """Return commands that show the gateway at work, and where its figures are."""
    post = f"curl {url}/v1/embeddings -H 'content-type: application/json'"
    return f"""ready. In another terminal:

    {post} -d '{{"model": "{model}", "input": "Hello, world"}}'
    {post} -d '{{"model": "{model}", "input": ["two", "texts"], "encoding_format": "base64"}}'

    metrics: {url}/metrics and Triton's {triton_metrics}; API: {url}/docs; Ctrl-C stops all
"""


def _embedded_triton(settings: Settings) -> EmbeddedTriton:
    return EmbeddedTriton(
        settings.model_repository,
        grpc_port=settings.embedded_grpc_port,
        http_port=settings.embedded_http_port,
        metrics_port=settings.embedded_metrics_port,
    )


def _uvicorn_config(settings: Settings, app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACEFUL_SHUTDOWN_S,
    )


if __name__ == "__main__":
    sys.exit(main())
