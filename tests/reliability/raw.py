"""A caller on bare sockets: cheap enough for a soak, and able to leave in the middle of a request."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.integration.triton_figures import DEMO_MODEL


@dataclass(frozen=True)
class Request:
    """One embeddings request.

    Attributes:
        input: what is embedded.
        headers: beside the usual ones.
        leave_after_s: when the caller closes the connection, if nothing came by then; None waits for the answer.
    """

    input: Any
    headers: dict[str, str] = field(default_factory=dict)
    leave_after_s: float | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        body = json.dumps({"model": DEMO_MODEL, "input": self.input, "encoding_format": "base64", **self.fields})
        headers = {"host": "gateway", "connection": "close", "content-length": str(len(body)), **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST /v1/embeddings HTTP/1.1\r\n{head}\r\n{body}".encode()


async def send(port: int, request: Request) -> tuple[int, bytes] | None:
    """Return status and body of the answer, or None if the caller left before it came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.encode())
        await writer.drain()
        async with asyncio.timeout(request.leave_after_s):
            answer = await reader.read(-1)
    except TimeoutError:
        return None
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body
