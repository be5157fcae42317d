"""Builds the ASGI application: routes, middleware, error answers, and a lifespan that opens the models.

Nothing is global and nothing happens at import. Called by __main__, and by tests with models of their own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import __version__
from gateway.errors import StartupError
from gateway.http import routes, status_page
from gateway.http.api_keys import ApiKeys
from gateway.http.body_limit import BodyLimit
from gateway.http.connection import DisconnectWatch
from gateway.http.deps import Services
from gateway.http.error_handlers import EXCEPTION_HANDLERS, CrashHandler
from gateway.http.middleware import CanonicalTarget, RequestObserver
from gateway.http.shortcut import EmbeddingsShortcut
from gateway.metrics import Metrics
from gateway.registry import Registry
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.tracing import Tracing

_JSON_THREADS = 1
"""More would only take turns: parsing and writing hold the interpreter lock. The event loop would wait for each."""

OpenRegistry = Callable[[], AbstractAsyncContextManager[Registry]]


class State(TypedDict):
    """What the lifespan puts into each request's state."""

    services: Services


def create_app(
    settings: Settings, open_registry: OpenRegistry, metrics: Metrics, tracing: "Tracing | None" = None
) -> FastAPI:
    """Return the application.

    Args:
        settings: how it runs.
        open_registry: opens the served models for the app's lifetime; may raise StartupError.
        metrics: told of everything; shown at /metrics.
        tracing: told of requests; None if it is off.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[State]:
        api_keys = ApiKeys(settings.api_keys, settings.api_keys_file)
        with ThreadPoolExecutor(_JSON_THREADS, "json") as json_threads:
            async with open_registry() as registry:
                yield {"services": Services(settings, registry, metrics, api_keys, json_threads)}

    app = Application(
        _middleware(settings, metrics, tracing),
        title="Embedding gateway",
        summary="OpenAI-compatible embeddings over NVIDIA Triton.",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        # Requests are traced and counted here, with another choice of what may be told.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.include_router(routes.api)
    app.include_router(routes.operations)
    if settings.status_page:
        app.include_router(status_page.router)
    return app


class Application(FastAPI):
    """FastAPI inside of our middleware, not around it: a request that the shortcut answers meets none of its layers.

    Args:
        outermost: the middleware, outermost first.
        options: FastAPI's.
    """

    def __init__(self, outermost: Sequence[Middleware], **options: Any) -> None:
        super().__init__(**options)
        self._outermost = outermost

    def build_middleware_stack(self) -> ASGIApp:
        """Return what answers a request."""
        app = super().build_middleware_stack()
        for middleware, args, kwargs in reversed(self._outermost):
            app = middleware(app, *args, **kwargs)
        return app


def _middleware(settings: Settings, metrics: Metrics, tracing: "Tracing | None") -> list[Middleware]:
    """Return the middleware, outermost first."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        # Any header that a page asks for: OpenAI's JavaScript client sends a dozen of its own.
        allow_headers=["*"],
        expose_headers=["x-request-id", "x-truncated-inputs", "retry-after"],
    )
    return [
        Middleware(StartupErrors),
        Middleware(CanonicalTarget),
        Middleware(RequestObserver, metrics=metrics, route_of=route_template, tracing=tracing),
        *([cors] if settings.cors_origins else []),
        Middleware(CrashHandler),
        Middleware(DisconnectWatch, send_timeout_s=settings.send_timeout_s),
        Middleware(
            BodyLimit,
            max_bytes=settings.max_body_bytes,
            max_total_bytes=settings.max_bodies_bytes,
            timeout_s=settings.body_timeout_s,
        ),
        Middleware(EmbeddingsShortcut),
    ]


@lru_cache(1024)
def route_template(path: str) -> str:
    """Return the template of the route with that path, or `unmatched`."""
    return _template(path, (*routes.api.routes, *routes.operations.routes, *status_page.router.routes))


def _template(path: str, known: Iterable[BaseRoute]) -> str:
    if path == "/openapi.json":
        return path
    matches = (route for route in known if isinstance(route, Route) and route.path_regex.match(path))
    return next((route.path_format for route in matches), "unmatched")


class StartupErrors:
    """Tells the server of a StartupError in one line, where the framework would send a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the lifespan; requests pass."""
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        failure: Message = {}

        async def send_unless_failed(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                failure.update(message)
            else:
                await send(message)

        try:
            await self.app(scope, receive, send_unless_failed)
        except StartupError as error:
            await send({**failure, "message": f"cannot start: {error}"})
        except asyncio.CancelledError:
            if failure:
                await send({**failure, "message": "told to stop before it could start"})
        except BaseException:
            if failure:
                await send(failure)
            raise
