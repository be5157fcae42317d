"""One model on several Triton endpoints, as one `Engine`. Opened by serving where there may be more than one.

Each call goes to the endpoint with the fewest calls under way: a slow one gets fewer of them, as its calls stay longer.
A call that is lost with its endpoint is made again on another one. Where the endpoints are the addresses of a name, the
name is looked up again every few seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress

from gateway.errors import EngineBadOutput, EngineRejected, EngineUnavailable, GatewayError, StartupError
from gateway.metrics import Metrics
from gateway.replica import Replica
from gateway.self_check import SelfCheck
from gateway.triton_url import TritonUrl
from gateway.types import Batch, Engine, Float32Array, ModelSpec

_log = logging.getLogger(__name__)

_RESOLVE_PERIOD_S = 5.0
_POLL_S = 0.25
_REASON_EVERY_S = 5.0

Connect = Callable[[str, ModelSpec], Engine]
"""Makes the engine of an endpoint; it need not be there yet."""
ReadSpec = Callable[[str], Awaitable[ModelSpec]]
"""Asks an endpoint once what its model says of itself; raises EngineUnavailable, or StartupError if that is no use."""


class Replicas:
    """The endpoints of one model. Made by `open_replicas`; `start` before use.

    Args:
        url: where they are.
        endpoints: their addresses as last resolved.
        spec: the configuration that all of them must have.
        connect: makes an endpoint's engine.
        metrics: told of the endpoints' state and calls.
    """

    def __init__(
        self, url: TritonUrl, endpoints: Collection[str], spec: ModelSpec, connect: Connect, metrics: Metrics
    ) -> None:
        self._url = url
        self._endpoints = endpoints
        self._spec = spec
        self._connect = connect
        self._metrics = metrics
        # In the order in which they were last used, so that equally busy ones take turns.
        self._replicas: dict[str, Replica] = {}
        self._draining: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    @property
    def spec(self) -> ModelSpec:
        """The configuration that all of them have."""
        return self._spec

    async def start(self, check: SelfCheck, on_change: Callable[[int], None]) -> None:
        """Begin to watch the endpoints; return as soon as one can be used, or it is known that none can.

        Args:
            check: the model's known texts.
            on_change: called with the number of endpoints in use whenever it may have changed.
        """
        self._check = check
        self._tell_count = on_change
        self._update(self._endpoints)
        if self._url.is_name:
            self._following = asyncio.create_task(self._follow())
        await self._settled.wait()

    async def infer(self, batch: Batch, timeout_s: float, headers: Mapping[str, str] | None = None) -> Float32Array:
        """Run one batch on the least loaded endpoint, or on others if it is lost there; see `Engine.infer`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        tried: set[Replica] = set()
        doubtful: list[tuple[Replica, GatewayError]] = []
        last_error: GatewayError = EngineUnavailable("No endpoint of Triton can be used.", retry_after_s=1)
        while replica := self._choose(tried):
            tried.add(replica)
            self._metrics.endpoint_call(self._spec.name, replica.endpoint)
            try:
                output = await replica.infer(batch, deadline - loop.time(), headers)
            except EngineUnavailable as error:
                last_error = error
                self._metrics.endpoint_lost_call(self._spec.name, replica.endpoint)
                replica.leave(error.message)
            except (EngineRejected, EngineBadOutput) as error:
                last_error = error
                doubtful.append((replica, error))
            else:
                # It was not the batch: one that fails quickly would be the least loaded, and draw all calls.
                for other, refusal in doubtful:
                    await other.give_up(refusal.message)
                return output
        raise last_error

    async def check_ready(self, timeout_s: float) -> None:
        """Return if an endpoint is in use; they are watched all the time, so this never waits. See `Engine`."""
        reasons = {replica.reason for replica in self._replicas.values()}
        if None not in reasons:
            known = " ".join(sorted(filter(None, reasons)))
            raise EngineUnavailable(f"No endpoint of Triton can be used. {known}".strip())

    async def reconnect(self) -> None:
        """Give all connections up; see `Engine.reconnect`."""
        for replica in list(self._replicas.values()):
            await replica.give_up("Its connections were given up.")

    async def close(self) -> None:
        """Close all endpoints."""
        if self._following:
            self._following.cancel()
        draining = list(self._draining)
        for task in draining:
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        while self._replicas:
            await self._replicas.popitem()[1].close()

    def _choose(self, tried: Collection[Replica]) -> Replica | None:
        usable = [replica for replica in self._replicas.values() if replica.reason is None and replica not in tried]
        chosen = min(usable, key=lambda replica: (replica.is_stalled, replica.calls), default=None)
        if chosen:
            self._replicas[chosen.endpoint] = self._replicas.pop(chosen.endpoint)
        return chosen

    async def _follow(self) -> None:
        """Take up addresses that the name gets, and drop those that it loses; one that has none keeps its last."""
        while True:
            await asyncio.sleep(_RESOLVE_PERIOD_S)
            with suppress(EngineUnavailable):
                self._update(await self._url.resolve())

    def _update(self, endpoints: Collection[str]) -> None:
        for endpoint in endpoints:
            if endpoint not in self._replicas:
                self._metrics.endpoint_up(self._spec.name, endpoint, False)
                engine = self._connect(endpoint, self._spec)
                self._replicas[endpoint] = Replica(endpoint, engine, self._check, self._show)
        for endpoint in self._replicas.keys() - set(endpoints):
            _log.info("endpoint %s is gone from the name's addresses", endpoint)
            draining = asyncio.create_task(self._replicas.pop(endpoint).drain())
            self._draining.add(draining)
            draining.add_done_callback(self._draining.discard)
            self._metrics.forget_endpoint(self._spec.name, endpoint)
            self._count()

    def _show(self, replica: Replica) -> None:
        if replica.endpoint in self._replicas:  # not one that is draining
            is_up = replica.reason is None and not replica.is_stalled
            self._metrics.endpoint_up(self._spec.name, replica.endpoint, is_up)
            self._count()

    def _count(self) -> None:
        """Tell how many are in use: stalled ones too, as calls are under way there."""
        replicas = self._replicas.values()
        in_use = sum(replica.reason is None for replica in replicas)
        if in_use or all(replica.was_asked for replica in replicas):
            self._settled.set()
        self._tell_count(in_use)


async def open_replicas(
    url: TritonUrl, model: str, read_spec: ReadSpec, connect: Connect, timeout_s: float, metrics: Metrics
) -> Replicas:
    """Wait until an endpoint has the model ready; the others may come later.

    Where several are there and do not agree, what most of them say counts, or the first of the list.

    Args:
        url: where they are.
        model: Triton's name of the model.
        read_spec: asks an endpoint.
        connect: makes an endpoint's engine.
        timeout_s: longest wait, seconds; the reason for waiting is logged every few seconds.
        metrics: told of the endpoints' state and calls.

    Raises:
        StartupError: no endpoint had the model in time, or none that answered keeps the contract.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    next_log = started + 1.0
    while True:
        endpoints, specs, errors = await _ask_all(url, read_spec)
        if specs:
            spec = max(specs, key=specs.count)
            return Replicas(url, endpoints, spec, connect, metrics)
        now = loop.time()
        reasons = "; ".join(map(str, errors))
        if now - started > timeout_s or all(isinstance(error, StartupError) for error in errors):
            raise StartupError(f"no endpoint of Triton has model {model} ready after {now - started:.0f} s: {reasons}")
        if now >= next_log:
            _log.info("waiting for model %s on several endpoints of Triton: %s", model, reasons)
            next_log = now + _REASON_EVERY_S
        await asyncio.sleep(_POLL_S)


async def _ask_all(
    url: TritonUrl, read_spec: ReadSpec
) -> tuple[Sequence[str], list[ModelSpec], list[EngineUnavailable | StartupError]]:
    """Return the endpoints, what some say of their model, and why others do not, in the order of the list."""
    try:
        endpoints = await url.resolve()
    except EngineUnavailable as error:
        return (), [], [error]

    async def ask(endpoint: str) -> ModelSpec | EngineUnavailable | StartupError:
        try:
            return await read_spec(endpoint)
        except EngineUnavailable as error:
            return EngineUnavailable(f"{endpoint}: {error}")
        except StartupError as error:
            return StartupError(f"{endpoint}: {error}")

    answers = await asyncio.gather(*map(ask, endpoints))
    specs = [answer for answer in answers if isinstance(answer, ModelSpec)]
    return endpoints, specs, [answer for answer in answers if not isinstance(answer, ModelSpec)]
