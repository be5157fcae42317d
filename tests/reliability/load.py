"""Calls at a constant rate, however slow the answers are: what a queue has to stand."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from tests.reliability.callers import Answer


class Load:
    """Makes `rate` calls a second until it is told to stop.

    Attributes:
        answers: what came back, in that order.
        sent: calls made.
    """

    def __init__(self, rate: float, call: Callable[[httpx.AsyncClient], Awaitable[Answer]]) -> None:
        self._rate = rate
        self._call = call
        self._stop = asyncio.Event()
        self.answers: list[Answer] = []
        self.sent = 0

    async def run(self) -> None:
        """Call; return when all calls have their answer."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client, asyncio.TaskGroup() as calls:
            while not self._stop.is_set():
                while self.sent < (loop.time() - started) * self._rate:
                    self.sent += 1
                    calls.create_task(self._note(client))
                await asyncio.sleep(0.01)

    async def run_for(self, seconds: float) -> None:
        """Call for that time."""
        asyncio.get_running_loop().call_later(seconds, self.stop)
        await self.run()

    async def _note(self, client: httpx.AsyncClient) -> None:
        self.answers.append(await self._call(client))

    def stop(self) -> None:
        """Make no more calls."""
        self._stop.set()

    def took_s(self, status: int) -> list[float]:
        """Return how long the answers of that status took, ascending."""
        return sorted(answer.took_s for answer in self.answers if answer.status == status)
