"""Shows the OpenAPI document as one plain page. Called by routes; pure.

It loads nothing from anywhere, unlike the framework's own page, so that it works on hosts without internet access.
"""

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, cast

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top; padding: .3rem .8rem
.3rem 0; border-bottom: 1px solid #ddd } code, pre { font: 14px ui-monospace, monospace } pre { background: #f5f5f5;
padding: .6rem; overflow-x: auto } h2 { margin-top: 2.5rem; border-bottom: 2px solid #ddd }
"""

_CODE = re.compile("`([^`]+)`")

Document = Mapping[str, Any]


def render_page(document: Document) -> str:
    """Return an HTML page with every route, field, example and answer of an OpenAPI document."""
    info = document["info"]
    title = f"{info['title']} {info['version']}"
    routes = (
        line
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for line in _operation(document, method.upper(), path, operation)
    )
    return "\n".join(
        [
            f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>",
            f"<h1>{escape(title)}</h1><p>{_text(info['summary'])} The same for machines:",
            '<a href="openapi.json">openapi.json</a>.</p>',
            *routes,
            "</html>",
        ]
    )


def _operation(document: Document, method: str, path: str, operation: Document) -> Iterator[str]:
    yield f"<h2><code>{escape(method)} {escape(path)}</code></h2>"
    yield f"<p>{_text(operation.get('description', operation['summary']))}"
    yield "Needs an API key, if the gateway was given any.</p>" if "security" in operation else "</p>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        schema = _resolve(document, body["schema"])
        fields = (
            (name, _type(part), "yes" if name in schema.get("required", ()) else "", part.get("description", ""))
            for name, part in schema["properties"].items()
        )
        yield from _table(("field", "type", "required", ""), fields)
        for name, example in body.get("examples", {}).items():
            yield f"<p>{escape(name)}:</p><pre>{escape(json.dumps(example['value']))}</pre>"
    parameters = (
        (part["name"], f"in the {part['in']}", "yes" if part.get("required") else "", part.get("description", ""))
        for part in operation.get("parameters", ())
    )
    yield from _table(("parameter", "", "required", ""), parameters)
    answers = (
        (status, answer["description"], ", ".join(answer.get("headers", ())))
        for status, answer in sorted(operation["responses"].items())
    )
    yield from _table(("status", "", "headers"), answers)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    lines = ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows]
    if lines:
        yield f"<table><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>"
        yield from (f"<tr>{line}</tr>" for line in lines)
        yield "</table>"


def _text(text: str) -> str:
    """Return a description as HTML; what stands in backticks is code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _resolve(document: Document, schema: Document) -> Document:
    """Return the schema itself, or the component that it refers to."""
    if "$ref" not in schema:
        return schema
    return cast("Document", document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])


def _type(schema: Document) -> str:
    """Return a field's type in words; null, which means absent everywhere, is left out."""
    parts = schema.get("anyOf") or schema.get("oneOf")
    if parts:
        words = (part.get("title") or _type(part) for part in parts if part.get("type") != "null")
        return ", or ".join(words)
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    kind = schema.get("type", "any")
    return str(kind) if isinstance(kind, str) else " or ".join(name for name in kind if name != "null")
