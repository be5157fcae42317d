"""Leads embeddings requests to their route's function without the framework's routing and dependencies. Pure ASGI.

Those took about two fifths of a short text's time in the gateway (measured with py-spy). The route itself stays: it is
what the OpenAPI document is made of, and what other methods are told apart by. Both run the same functions.
"""

from fastapi.security.utils import get_authorization_scheme_param
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.deps import Services, check_api_key
from gateway.http.error_handlers import ANSWERED, answer_error
from gateway.http.routes import EMBEDDINGS_PATH, create_embeddings


class EmbeddingsShortcut:
    """Answers `POST /v1/embeddings`; hands all else on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] != EMBEDDINGS_PATH or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        response = await _answer(Request(scope, receive))
        await response(scope, receive, send)


async def _answer(request: Request) -> Response:
    services: Services = request.state.services
    try:
        scheme, key = get_authorization_scheme_param(request.headers.get("authorization"))
        check_api_key(services, key if scheme.lower() == "bearer" else None)
        return await create_embeddings(request, services, request.state.record)
    except ANSWERED as error:
        return await answer_error(request, error)
