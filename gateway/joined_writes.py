"""Sends what is written in one turn of the event loop in one call. Used by http_protocol.

uvloop hands each write to the system at once, so that an answer's head and its body took two calls and woke the caller
twice: an eighth of a short text's time in the gateway (measured).
"""

import asyncio
from typing import Any


class JoinedWrites:
    """A transport that holds writes back until the event loop's next turn.

    Longer ones go out at once, so that the transport still says when its caller reads too slowly.

    Args:
        transport: sends; everything but writing and closing is left to it.
        loop: its event loop.
    """

    max_held_bytes = 64 * 1024

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes) -> None:
        """Send `data` in order, soon."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > self.max_held_bytes:
            self._flush()

    def close(self) -> None:
        """Send what is held, then close."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))
