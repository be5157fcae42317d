"""What stands between the routes and a caller who goes away or stops reading. Pure ASGI."""

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class DisconnectWatch:
    """Cancels a request when its caller goes away, and marks its record.

    The server says so only to those who ask: once the body is read, the watch asks for as long as the request runs. A
    caller who does not take the next part of the answer in time counts as gone.

    Args:
        send_timeout_s: longest time that one part of an answer may take, seconds.
    """

    def __init__(self, app: ASGIApp, send_timeout_s: float) -> None:
        self.app = app
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request until it ends or its caller goes away."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an ASGI application runs in a task")
        watched = _WatchedConnection(receive, send, task, self._send_timeout_s)
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
    """One request's receive and send, and the task that waits for the disconnect.

    Timers instead of asyncio.timeout: they take a third of its time, and cancel the request all the same.
    """

    def __init__(self, receive: Receive, send: Send, request: "asyncio.Task[None]", send_timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._request = request
        self._send_timeout_s = send_timeout_s
        self._loop = asyncio.get_running_loop()
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
            self._watcher = self._loop.create_task(self._watch())
        return message

    async def send(self, message: Message) -> None:
        # The server reports a disconnect after a complete answer too: that one is no reason to cancel.
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        timer = self._loop.call_later(self._send_timeout_s, self._give_up)
        try:
            await self._send(message)
        finally:
            timer.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._answered:
            self._give_up()

    def _give_up(self) -> None:
        self.gone = True
        self._request.cancel()

    def close(self) -> None:
        """Stop watching; take back the watch's own cancellation, so that the server's task can end in peace."""
        if self._watcher is not None:
            self._watcher.cancel()
        if self.gone and self._request.cancelling():
            self._request.uncancel()
