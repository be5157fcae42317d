"""HTTP connections that end themselves: headers must come in time and be of a sane length. Used by server.

Answers leave in as few system calls as they fit into.

The framework sees a request only when its headers are complete, and uvicorn waits for them without a limit.
"""

import asyncio
from typing import ClassVar

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.joined_writes import JoinedWrites


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with limits on headers and errors of the contract's shape.

    Attributes:
        max_header_bytes: longest request line and headers together; what the caller sends in one packet may pass it.
        header_timeout_s: longest time from the connection's start, or from a request's first byte, to its last header.
    """

    max_header_bytes: ClassVar[int] = 64 * 1024
    header_timeout_s: ClassVar[float] = 20.0

    _header_bytes: int | None = None
    """What has come of the headers under way, None outside of them."""
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; answer 431 to headers that do not end."""
        if self.cycle is None or self.cycle.response_complete:
            self._await_headers()
        super().data_received(data)
        if self._header_bytes is not None:
            self._header_bytes += len(data)
            if self._header_bytes > self.max_header_bytes:
                self._refuse(431, f"The headers are longer than {self.max_header_bytes} bytes.")

    def on_message_begin(self) -> None:
        """Note that a request's first byte has come."""
        super().on_message_begin()
        self._header_bytes = 0
        self._await_headers()

    def on_headers_complete(self) -> None:
        """Note that its last header has come."""
        self._header_bytes = None
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(400, msg)

    def _await_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout_s, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._refuse(408, f"The headers did not arrive within {self.header_timeout_s:g} seconds.")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = orjson.dumps({"error": error})
        lines = [
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"content-length: %d\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join([*lines, body]))
        self.transport.close()
