"""One of several Triton endpoints of a model: how busy it is, and whether it may be used. Made by replicas.

It is used once it has the model ready in the configuration that is served and has passed the self-check, and again
after every failure. One that does not answer a simple question is avoided at once and given up after some seconds, with
the calls under way on it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from gateway.errors import EngineSilent, GatewayError
from gateway.self_check import SelfCheck
from gateway.types import Batch, Engine, Float32Array

_log = logging.getLogger(__name__)

_PERIOD_S = 0.5
_AWAY_PERIOD_S = 0.25
_STALL_S = 0.5
"""With the period, how long an endpoint that hangs gets new calls."""
_ANSWER_TIMEOUT_S = 3.0
"""Long enough for a Triton whose processors are all busy: its calls under way would have to start again elsewhere."""
_DRAIN_POLL_S = 0.1


class Replica:
    """One endpoint; watched from its making on.

    Args:
        endpoint: its `host:port`.
        engine: the model there.
        check: the model's known texts.
        on_change: called after `reason` or `is_stalled` has changed.

    Attributes:
        endpoint: its `host:port`.
        calls: engine calls under way.
        reason: why it must not be used, or None.
        is_stalled: whether it owes the answer to a simple question; then it is used only if all others are no better.
        was_asked: whether `reason` is known by now.
    """

    def __init__(self, endpoint: str, engine: Engine, check: SelfCheck, on_change: Callable[["Replica"], None]) -> None:
        self.endpoint = endpoint
        self.calls = 0
        self.reason: str | None = "It was not asked yet."
        self.is_stalled = False
        self.was_asked = False
        self._engine = engine
        self._check = check
        self._on_change = on_change
        self._watching = asyncio.create_task(self._watch())

    async def infer(self, batch: Batch, timeout_s: float, headers: Mapping[str, str] | None) -> Float32Array:
        """Run one batch here; see `Engine.infer`."""
        self.calls += 1
        try:
            return await self._engine.infer(batch, timeout_s, headers)
        finally:
            self.calls -= 1

    def leave(self, reason: str) -> None:
        """Use it no more until it has passed the self-check again."""
        self._tell(reason)

    async def give_up(self, reason: str) -> None:
        """Leave it, and give up what is under way there: it may be answered wrongly, or never."""
        self.leave(reason)
        await self._engine.reconnect()

    async def drain(self) -> None:
        """Close it when the calls under way have ended."""
        self._watching.cancel()
        try:
            while self.calls:  # noqa: ASYNC110 - each call has a deadline
                await asyncio.sleep(_DRAIN_POLL_S)
        finally:
            await self._engine.close()

    async def close(self) -> None:
        """Close it at once."""
        self._watching.cancel()
        await self._engine.close()

    async def _watch(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_PERIOD_S if self.reason is None else _AWAY_PERIOD_S)

    async def _look(self) -> None:
        """Ask whether it is ready, and check it unless it is in use already."""
        stall = asyncio.get_running_loop().call_later(_STALL_S, self._set_stalled, True)
        try:
            await self._engine.check_ready(_ANSWER_TIMEOUT_S)
        except EngineSilent as error:
            await self.give_up(error.message)
            return
        except GatewayError as error:
            self.leave(error.message)
            return
        finally:
            stall.cancel()
            self._set_stalled(False)
        if self.reason is not None:
            self._check = self._check.turned()
            self._tell(await self._check.find_mismatch(self._engine))

    def _set_stalled(self, is_stalled: bool) -> None:
        if is_stalled != self.is_stalled:
            self.is_stalled = is_stalled
            if self.reason is None:
                _log.warning("endpoint %s %s", self.endpoint, "does not answer" if is_stalled else "answers again")
            self._on_change(self)

    def _tell(self, reason: str | None) -> None:
        if self.was_asked and reason == self.reason:
            return
        self.was_asked = True
        self.reason = reason
        model = self._engine.spec.name
        if reason is None:
            _log.info("endpoint %s is used for model %s", self.endpoint, model)
        else:
            _log.error("endpoint %s is not used for model %s: %s", self.endpoint, model, reason)
        self._on_change(self)
