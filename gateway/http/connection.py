"""What stands between the connection and the routes: the body's limits, and the caller who goes away. Pure ASGI."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import RequestTimeout, RequestTooLarge


class DisconnectWatch:
    """Cancels a request when its caller goes away, and marks its record.

    The server says so only to those who ask: once the body is read, the watch asks for as long as the request runs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request until it ends or its caller goes away."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an ASGI application runs in a task")
        watched = _WatchedConnection(receive, send, task)
        try:
            await self.app(scope, watched.receive, watched.send)
        except (asyncio.CancelledError, ClientDisconnect):
            if not watched.gone:
                raise
        finally:
            watched.close()
            if watched.gone:
                scope["state"]["record"].caller_gone = True


class _WatchedConnection:
    """One request's receive and send, and the task that waits for the disconnect."""

    def __init__(self, receive: Receive, send: Send, request: "asyncio.Task[None]") -> None:
        self._receive = receive
        self._send = send
        self._request = request
        self._watcher: asyncio.Task[None] | None = None
        self._answered = False
        self.gone = False

    async def receive(self) -> Message:
        if self._watcher is not None:
            await asyncio.shield(self._watcher)
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
        elif not message.get("more_body", False):
            self._watcher = asyncio.create_task(self._watch())
        return message

    async def send(self, message: Message) -> None:
        # The server reports a disconnect after a complete answer too: that one is no reason to cancel.
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._send(message)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._answered:
            self.gone = True
            self._request.cancel()

    def close(self) -> None:
        """Stop watching; take back the watch's own cancellation, so that the server's task can end in peace."""
        if self._watcher is not None:
            self._watcher.cancel()
        if self.gone and self._request.cancelling():
            self._request.uncancel()


class BodyLimit:
    """Stops reading a body that is too long or too slow. What was sent too much is never held in memory.

    Reading is what fails: a request that is refused without reading its body, as for a wrong key, is refused for that.

    Args:
        max_bytes: longest body.
        timeout_s: longest time from the first read to the end of the body, seconds.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request with a receive that raises RequestTooLarge or RequestTimeout."""
        if scope["type"] == "http":
            length = Headers(scope=scope).get("content-length", "")
            announced = int(length) if length.isascii() and length.isdigit() else 0
            receive = _LimitedBody(receive, announced, self._max_bytes, self._timeout_s).receive
        await self.app(scope, receive, send)


class _LimitedBody:
    def __init__(self, receive: Receive, announced: int, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._length = announced
        self._received = 0
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._deadline: float | None = None
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        self._check_length(self._length)
        message = await self._receive_in_time()
        self._received += len(message.get("body", b""))
        self._check_length(self._received)
        self._complete = not message.get("more_body", False)
        return message

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
