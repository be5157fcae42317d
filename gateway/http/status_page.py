"""The page for people at `GET /`: what is served, live figures, and a box to try it. Included by app.

It loads nothing from elsewhere. Its script reads /metrics and calls /v1/embeddings, with a key where one is needed, as
any caller does; the browser is told to let it do nothing else.
"""

from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from gateway.http.deps import ServicesDep
from gateway.registry import ServedModel

_STATIC = Path(__file__).with_name("static")

router = APIRouter(include_in_schema=False)


@router.get("/")
async def show_status(request: Request, services: ServicesDep) -> HTMLResponse:
    """Show the page."""
    style, script = _read("status.css"), _read("status.js")
    page = Template(_read("status.html")).substitute(
        style=style,
        script=script,
        version=escape(request.app.version),
        models="".join(_row(model) for model in services.registry),
        options="".join(f"<option>{escape(model.id)}</option>" for model in services.registry),
        key_hidden="" if services.api_keys.required else "hidden",
    )
    return HTMLResponse(page, headers={"content-security-policy": _policy(style, script)})


def _row(model: ServedModel) -> str:
    spec = model.embedder.spec
    name = escape(model.id)
    cells: Iterable[object] = (
        spec.hidden_size,
        f"{spec.max_sequence_length} tokens",
        escape(spec.pooling),
        escape(model.precision),
        spec.max_batch_size,
        spec.instances,
    )
    return (
        f'<tr data-model="{name}"><td>{name}<td class="state">' + "".join(f"<td>{cell}" for cell in cells) + "</tr>\n"
    )


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
