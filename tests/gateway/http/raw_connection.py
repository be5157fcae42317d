"""HTTP by hand, for what ordinary clients do not do: half requests, slow bodies, several requests at once."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def head(*headers: str, target: str = "POST /v1/embeddings") -> bytes:
    return "\r\n".join([f"{target} HTTP/1.1", "host: gateway", *headers, "", ""]).encode()


def post(body: bytes) -> bytes:
    return head("content-type: application/json", f"content-length: {len(body)}") + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and JSON of the next answer on a connection."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers, json.loads(body) if body else None


async def until(condition: Callable[[], bool], within_s: float = 0.5) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - metrics have no event
            await asyncio.sleep(0.005)
