"""Least loaded against round robin over two endpoints, one of which is slower: `python -m bench.endpoints`, by hand.

The endpoints are stand-ins: each runs two calls at a time, of a fixed duration. Scheduler and replicas are the
gateway's own, on a clock that jumps to whatever happens next, so that the figures are the same on every machine.
"""

import asyncio
import selectors
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

from gateway.metrics import Metrics
from gateway.pooling import normalize
from gateway.replica import Replica
from gateway.replicas import Replicas
from gateway.scheduler import Scheduler
from gateway.self_check import SelfCheck
from gateway.triton_url import TritonUrl
from gateway.types import Batch, Float32Array
from tests.fakes import FakeEngine, encoding, expected_rows

SECONDS = 20.0
CALLERS = 64
FAST_S = 0.010
SLOWER = (1, 2, 4)
INSTANCES = 2
MODEL = "fake"
URL = TritonUrl(("fast:1", "slow:1"))
_KNOWN = [encoding(1, 2, 3)]


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait: where nothing is to be done now, its clock jumps to what is due next."""

    def __init__(self) -> None:
        self._now_s = 0.0
        selector = selectors.DefaultSelector()
        select = selector.select

        def jump(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            events = select(0)
            if not events and timeout:
                self._now_s += timeout
            return events

        selector.select = jump  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        """Return its clock's time, seconds."""
        return self._now_s


class TimedEngine(FakeEngine):
    """Two instances whose calls take `delay_s`; further ones wait, as in Triton."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(delay_s=delay_s)
        self._instances = asyncio.Semaphore(INSTANCES)

    async def infer(self, batch: Batch, timeout_s: float, headers: Mapping[str, str] | None = None) -> Float32Array:
        """See `Engine.infer`."""
        async with self._instances:
            return await super().infer(batch, timeout_s, headers)


class RoundRobin(Replicas):
    """Takes the endpoints in turn, whatever is under way there."""

    def _choose(self, tried: Collection[Replica]) -> Replica | None:
        for endpoint, replica in self._replicas.items():
            if replica.reason is None and replica not in tried:
                self._replicas[endpoint] = self._replicas.pop(endpoint)
                return replica
        return None


async def measure(kind: type[Replicas], slow_s: float) -> str:
    """Return what callers get, as one line."""
    engines = dict(zip(URL.endpoints, (TimedEngine(FAST_S), TimedEngine(slow_s)), strict=True))
    spec, metrics = engines[URL.endpoints[0]].spec, Metrics([MODEL])
    replicas = kind(URL, URL.endpoints, spec, lambda endpoint, _: engines[endpoint], metrics)
    loop = asyncio.get_running_loop()
    took_s: list[float] = []
    with ThreadPoolExecutor(1) as threads:
        scheduler = Scheduler(
            replicas,
            slots=INSTANCES,
            max_batch_tokens=16_384,
            max_delay_s=0.005,
            executor=threads,
            metrics=metrics,
            model=MODEL,
        )
        check = SelfCheck(_KNOWN, normalize(expected_rows(_KNOWN)))
        await replicas.start(check, lambda endpoints: scheduler.resize(INSTANCES * max(endpoints, 1)))
        await asyncio.sleep(1)  # both are in use
        end = loop.time() + SECONDS

        async def call(caller: int) -> None:
            while (started := loop.time()) < end:
                await scheduler.run([encoding(1 + caller, 2, 3)], started + 30)
                took_s.append(loop.time() - started)

        await asyncio.gather(*map(call, range(CALLERS)))
        await scheduler.close()
        await replicas.close()
    took_s.sort()
    median_ms, p99_ms = (1000 * took_s[int(len(took_s) * share)] for share in (0.5, 0.99))
    return f"{len(took_s) / SECONDS:6.0f} texts/s, median {median_ms:3.0f} ms, p99 {p99_ms:3.0f} ms"


def main() -> None:
    """Print a line for each pair."""
    for times in SLOWER:
        for kind, name in ((RoundRobin, "round robin"), (Replicas, "least loaded")):
            loop = JumpingLoop()
            with patch("time.perf_counter", loop.time):
                line = loop.run_until_complete(measure(kind, FAST_S * times))
            loop.close()
            print(f"the slow one takes {times} x as long, {name:12}: {line}", flush=True)


if __name__ == "__main__":
    main()
