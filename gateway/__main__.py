"""Starts the gateway: settings, logs, the embedded Triton if asked for, then one server or several workers.

`python -m gateway`.
"""

import argparse
import logging
import signal
import sys
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import NoReturn

from pydantic import ValidationError

from gateway.embedded import EmbeddedTriton
from gateway.errors import StartupError
from gateway.logs import configure_logging
from gateway.server import bind, serve
from gateway.serving import served_names
from gateway.settings import Settings, describe_settings, unknown_variables
from gateway.workers import run_workers

_log = logging.getLogger("gateway")


def main() -> int:
    """Run until SIGINT or SIGTERM; return the exit code."""
    _parse_arguments()
    try:
        settings = Settings()
    except ValidationError as error:
        configure_logging("info", "text")
        for problem in error.errors(include_url=False, include_input=False):
            message = problem["msg"].removeprefix("Value error, ")
            # Where two variables do not go together, the message names both.
            field = "".join(f"GATEWAY_{name}: ".upper() for name in problem["loc"][:1])
            _log.critical("%s%s", field, message)
        return 2
    configure_logging(settings.log_level, settings.log_format)
    if unknown := unknown_variables():
        _log.warning("not settings, ignored: %s", ", ".join(unknown))
    # Raised by uvicorn once more after it has shut down; the default handler would end the process at once.
    signal.signal(signal.SIGTERM, _exit)
    try:
        return _serve(settings)
    except StartupError as error:
        _log.critical("cannot start: %s", error)
        return 1
    except KeyboardInterrupt:
        return 0


def _parse_arguments() -> None:
    """Show the settings to who asks for help; there are no arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway",
        description="Serve embeddings. All settings are environment variables:",
        epilog=describe_settings(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()


def _exit(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _serve(settings: Settings) -> int:
    model = served_names(settings)[0]
    with ExitStack() as stack:
        listener = stack.enter_context(bind(settings.host, settings.port))
        url = f"http://{settings.host}:{listener.getsockname()[1]}"
        on_listening = partial(_log.info, "listening on %s", url)
        if settings.embedded_triton:
            if "triton_url" in settings.model_fields_set:
                _log.warning("GATEWAY_TRITON_URL is not used: GATEWAY_EMBEDDED_TRITON starts a Triton of its own")
            triton = stack.enter_context(_embedded_triton(settings))
            _log.info("starting Triton on %s", settings.model_repository)
            triton.wait_ready(settings.startup_timeout_s)
            _log.info("Triton is ready: gRPC %s, HTTP %s", triton.grpc_url, triton.http_url)
            settings = settings.model_copy(update={"triton_url": triton.grpc_url})
            on_listening = partial(_log.info, "%s", _welcome(url, model, triton.metrics_url))
        if settings.workers > 1:
            return run_workers(settings, listener, on_listening)
        serve(settings, listener, on_listening)
        return 0


def _welcome(url: str, model: str, triton_metrics: str) -> str:
    """Return commands that show the gateway at work, and where its figures are."""
    post = f"curl {url}/v1/embeddings -H 'content-type: application/json'"
    return f"""ready. In another terminal:

    {post} -d '{{"model": "{model}", "input": "Hello, world"}}'
    {post} -d '{{"model": "{model}", "input": ["two", "texts"], "encoding_format": "base64"}}'

    in a browser: {url}; API: {url}/docs; metrics: {url}/metrics and Triton's {triton_metrics}; Ctrl-C stops all
"""


def _embedded_triton(settings: Settings) -> EmbeddedTriton:
    return EmbeddedTriton(
        settings.model_repository,
        grpc_port=settings.embedded_grpc_port,
        http_port=settings.embedded_http_port,
        metrics_port=settings.embedded_metrics_port,
        restart=True,
    )


if __name__ == "__main__":
    sys.exit(main())
