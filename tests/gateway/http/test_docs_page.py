import re
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from tests.gateway.http.conftest import Harness


async def test_it_shows_every_route_field_and_status(client: httpx.AsyncClient, harness: "Harness") -> None:
    response = await client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    document = harness.app().openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert f"{method.upper()} {path}</code>" in response.text
            assert all(f"<td>{status}</td>" in response.text for status in operation["responses"])
    fields = document["paths"]["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert all(f"<td>{name}</td>" in response.text for name in fields["properties"])
    assert "NONE or END or START" in response.text


async def test_what_descriptions_have_in_backticks_is_shown_as_code(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    assert "refuse it (<code>NONE</code>, default)" in page
    assert "`" not in page


async def test_it_loads_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    assert not re.search(r"https?:|//|<script|@import|url\(|src=", page)
    assert re.findall(r'href="([^"]*)"', page) == ["openapi.json"]
