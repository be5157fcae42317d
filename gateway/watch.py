"""Watches one model on Triton: unready while it is away, checked again when it is back. Started by serving.

Requests to an unready model are refused at once. A Triton that takes calls and does not answer them is found by asking
it something that takes no time; then what is under way is given up, so that no caller waits for its deadline, and
nothing that was asked before is answered after.
"""

import asyncio
import logging

from gateway.embedder import Embedder
from gateway.errors import EngineSilent, GatewayError
from gateway.metrics import Metrics
from gateway.model_directory import ModelDirectory
from gateway.types import Engine

_log = logging.getLogger(__name__)

_PERIOD_S = 1.0
_AWAY_PERIOD_S = 0.25
_ANSWER_TIMEOUT_S = 3.0
"""Long enough for a Triton whose processors are all busy."""


class ModelWatch:
    """Keeps `embedder.unready_reason` and the metric of one model true.

    Args:
        embedder: the model.
        engine: its engine.
        directory: has the texts and vectors of its self-check.
        metrics: told whether it is ready.
    """

    def __init__(self, embedder: Embedder, engine: Engine, directory: ModelDirectory, metrics: Metrics) -> None:
        self._embedder = embedder
        self._engine = engine
        self._directory = directory
        self._metrics = metrics
        self._order = -1

    async def run(self) -> None:
        """Look again and again; for a task that is cancelled in the end."""
        while True:
            is_away = await self._is_away()
            if not is_away and self._embedder.unready_reason is not None:
                await self.check()
            await asyncio.sleep(_AWAY_PERIOD_S if is_away else _PERIOD_S)

    async def check(self) -> None:
        """Run the self-check, each time in another order: an engine that answers what it was asked before fails it."""
        self._order = -self._order
        texts, vectors = self._directory.check_texts, self._directory.check_embeddings
        self._tell(await self._embedder.find_mismatch(texts[:: self._order], vectors[:: self._order]))

    async def _is_away(self) -> bool:
        try:
            await self._engine.check_ready(_ANSWER_TIMEOUT_S)
        except GatewayError as error:
            self._tell(error.message)
            if isinstance(error, EngineSilent):
                self._embedder.give_up(error.message)
                await self._engine.reconnect()
            return True
        return False

    def _tell(self, reason: str | None) -> None:
        self._metrics.model_ready(self._directory.name, reason is None)
        if reason == self._embedder.unready_reason:
            return
        self._embedder.unready_reason = reason
        if reason is None:
            _log.info("model %s is ready again", self._directory.name)
        else:
            _log.error("model %s is not ready: %s", self._directory.name, reason)
