"""Measures a gateway under more load than it can stand: `python -m tests.reliability.overload`.

Finds what the real Triton sustains on this machine, then asks for a multiple of it.
"""

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.gateway_process import ROOT, run_gateway
from tests.reliability.callers import Answer, ask_async
from tests.reliability.load import Load
from tests.reliability.restartable import RestartableTriton

REQUEST = ["tree " * 60] * 16
"""About a thousand tokens."""


async def sustainable_rate(url: str, seconds: float) -> float:
    """Return the requests a second that eight callers get, each asking again as soon as it is answered."""
    answers: list[Answer] = []
    end = asyncio.get_running_loop().time() + seconds

    async def call_again(client: httpx.AsyncClient) -> None:
        while asyncio.get_running_loop().time() < end:
            answers.append(await ask_async(client, url, REQUEST))

    async with httpx.AsyncClient(timeout=60) as client:
        await asyncio.gather(*(call_again(client) for _ in range(8)))
    return len(answers) / seconds


async def health_times(url: str, seconds: float) -> list[float]:
    """Return how long health and metrics took, ascending."""
    times = []
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    async with httpx.AsyncClient(timeout=30) as client:
        while loop.time() < end:
            for path in ("/health/live", "/health/ready", "/metrics"):
                started = loop.time()
                await client.get(f"{url}{path}")
                times.append(loop.time() - started)
            await asyncio.sleep(0.1)
    return sorted(times)


async def overload(url: str, rate: float, seconds: float) -> dict[str, Any]:
    """Ask at that rate; return what came of it."""
    load = Load(rate, partial(ask_async, url=url, input_=REQUEST))
    _, health = await asyncio.gather(load.run_for(seconds), health_times(url, seconds))
    accepted = load.took_s(200)
    retry_after = [int(answer.headers["retry-after"]) for answer in load.answers if answer.status == 429]
    return {
        "sent_per_s": round(rate, 1),
        "statuses": dict(Counter(answer.status for answer in load.answers)),
        "accepted_s": summary(accepted),
        "refused_s": summary(load.took_s(429)),
        "retry_after_s": summary([float(one) for one in sorted(retry_after)]),
        "health_s": summary(health),
    }


def summary(ascending: list[float]) -> dict[str, float]:
    """Return median, 99th percentile and largest."""
    if not ascending:
        return {}
    picks = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(ascending[min(int(len(ascending) * at), len(ascending) - 1)], 3) for name, at in picks.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--times", type=float, default=5)
    options = parser.parse_args()
    repository = ROOT / ".cache" / "test_triton_repo"
    with RestartableTriton(repository) as triton, tempfile.TemporaryDirectory() as folder:
        triton.start()
        with run_gateway(Path(folder, "log"), model_repository=repository, triton_url=triton.url) as gateway:
            sustained = asyncio.run(sustainable_rate(gateway.url, 10))
            result = asyncio.run(overload(gateway.url, sustained * options.times, options.seconds))
    print(json.dumps({"sustained_per_s": round(sustained, 1), **result}, indent=1))


if __name__ == "__main__":
    main()
