"""The limits of request bodies: how long, how slow, and how much of all of them together. Pure ASGI."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ExceededLimit, Overloaded, RequestTimeout, RequestTooLarge


class BodyLimit:
    """Stops reading a body that is too long or too slow, or for which there is no room beside all others.

    What was sent too much is never held in memory. Reading is what fails: a request that is refused without reading its
    body, as for a wrong key, is refused for that.

    Args:
        max_bytes: longest body.
        max_total_bytes: all bodies together of the requests under way; a body counts until its request ends.
        timeout_s: longest time from the first read to the end of the body, seconds.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_total_bytes: int, timeout_s: float) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._room = _Room(max_total_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request with a receive that raises RequestTooLarge, RequestTimeout or Overloaded."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        announced = int(length) if length.isascii() and length.isdigit() else 0
        body = _LimitedBody(receive, announced, self._max_bytes, self._timeout_s, self._room)
        try:
            await self.app(scope, body.receive, send)
        finally:
            body.release()


class _Room:
    """How many bytes the bodies of all requests may take together."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes

    def take(self, length: int) -> None:
        if length > self._free_bytes:
            message = "Too many long requests are under way. Try again later."
            raise Overloaded(message, ExceededLimit.BODIES, retry_after_s=1)
        self._free_bytes -= length

    def give_back(self, length: int) -> None:
        self._free_bytes += length


class _LimitedBody:
    def __init__(self, receive: Receive, announced: int, max_bytes: int, timeout_s: float, room: _Room) -> None:
        self._receive = receive
        self._length = announced
        self._received = 0
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._room = room
        self._deadline: float | None = None
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        self._check_length(self._length)
        message = await self._receive_in_time()
        length = len(message.get("body", b""))
        self._check_length(self._received + length)
        self._room.take(length)
        self._received += length
        self._complete = not message.get("more_body", False)
        return message

    def release(self) -> None:
        self._room.give_back(self._received)

    async def _receive_in_time(self) -> Message:
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._timeout_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        raise RequestTimeout(f"The body did not arrive within {self._timeout_s:g} seconds.")

    def _check_length(self, length: int) -> None:
        if length > self._max_bytes:
            raise RequestTooLarge(f"The body is longer than {self._max_bytes} bytes. Send fewer inputs at a time.")
