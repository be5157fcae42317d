"""Asks all models at once whether they can answer, and never waits long. Called by routes."""

import asyncio

from gateway.errors import GatewayError
from gateway.metrics import Metrics
from gateway.registry import Registry, ServedModel

_CHECK_TIMEOUT_S = 0.65
"""What a check is told."""
_WAIT_TIMEOUT_S = 0.75
"""What it gets: one second for the whole answer, even when a check does not keep to its timeout."""


async def find_unready(registry: Registry, metrics: Metrics) -> dict[str, str]:
    """Return the models that cannot answer, with the reason; all of them once the gateway is stopping."""
    if registry.is_stopping:
        return {model.id: "the gateway is stopping." for model in registry}
    checks = {model.id: asyncio.create_task(_find_reason(model)) for model in registry}
    if not checks:
        return {}
    await asyncio.wait(checks.values(), timeout=_WAIT_TIMEOUT_S)
    reasons = {model: check.result() if check.done() else "no answer in time." for model, check in checks.items()}
    for model, check in checks.items():
        check.cancel()
        metrics.model_ready(model, reasons[model] is None)
    return {model: reason for model, reason in reasons.items() if reason is not None}


async def _find_reason(model: ServedModel) -> str | None:
    try:
        await model.embedder.check_ready(_CHECK_TIMEOUT_S)
    except GatewayError as error:
        return error.message
    return None
