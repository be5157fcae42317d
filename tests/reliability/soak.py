"""Looks for leaks: `python -m tests.reliability.soak --calls 100000`.

Many short-lived callers, most of whom leave after 10 ms, before a stub Triton; the gateway's memory, descriptors,
threads and /dev/shm are read between rounds of equal size.
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tests.gateway_process import ROOT
from tests.reliability.callers import sample, wait_until
from tests.reliability.raw import Request, send
from tests.stub_gateway import StubGateway, run_stub_gateway

CALLERS = 20
CALL_S = 0.02
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


@dataclass(frozen=True)
class Reading:
    """What the gateway has after some calls; `shared_memory` counts its mappings of /dev/shm."""

    calls: int
    rss_kib: int
    descriptors: int
    threads: int
    shared_memory: int


@dataclass(frozen=True)
class Soak:
    """The readings, and what came of the calls.

    Attributes:
        readings: after each round.
        statuses: how many calls ended with each status; `left` for callers who left.
        seconds: how long it took.
    """

    readings: list[Reading]
    statuses: dict[str, int]
    seconds: float

    @property
    def rss_kib_per_1000_calls(self) -> float:
        """Slope of the resident memory over the second half."""
        half = self.readings[len(self.readings) // 2 :]
        return float(np.polyfit([one.calls for one in half], [one.rss_kib for one in half], 1)[0]) * 1000


def next_request(chance: random.Random) -> Request:
    """Return a call of the mix: seven of ten leave after 10 ms."""
    kind = chance.random()
    words = "tree " * chance.randint(1, 200)
    if kind < 0.7:
        return Request([words] * chance.randint(1, 4), leave_after_s=0.01)
    if kind < 0.8:
        return Request([words] * chance.randint(1, 8))
    if kind < 0.9:  # refused: too long, empty, no such prompt
        return chance.choice([Request("tree " * 500), Request(["tree", ""]), Request("x", fields={"input_type": "?"})])
    if kind < 0.95:
        return Request("x" * 50_000, fields={"truncate": "END"})
    return Request(["x" * 50_000] * 2, leave_after_s=0.01)


def read(gateway_pid: int, calls: int) -> Reading:
    process = Path(f"/proc/{gateway_pid}")
    return Reading(
        calls,
        int((process / "statm").read_text().split()[1]) * _PAGE_KIB,
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        (process / "maps").read_text().count("/dev/shm/"),
    )


async def run_round(port: int, calls: int, chance: random.Random, statuses: dict[str, int]) -> None:
    requests = iter([next_request(chance) for _ in range(calls)])

    async def call_again() -> None:
        for request in requests:
            answer = await send(port, request)
            status = "left" if answer is None else str(answer[0])
            statuses[status] = statuses.get(status, 0) + 1

    await asyncio.gather(*(call_again() for _ in range(CALLERS)))


def soak(stub_gateway: StubGateway, calls: int, rounds: int, seed: int = 0) -> Soak:
    """Make that many calls, in rounds."""
    gateway = stub_gateway.gateway
    port = int(gateway.url.rpartition(":")[2])
    stub_gateway.triton.delay_s = CALL_S
    chance, statuses, readings = random.Random(seed), dict[str, int](), []
    started = time.monotonic()
    for number in range(rounds):
        asyncio.run(run_round(port, calls // rounds, chance, statuses))
        stub_gateway.triton.requests.clear()
        wait_until(lambda: sample(gateway.url, "requests_in_flight") == 1, 10)
        readings.append(read(gateway.process.pid, (number + 1) * (calls // rounds)))
    return Soak(readings, statuses, time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    repository = ROOT / ".cache" / "test_triton_repo"
    with tempfile.TemporaryDirectory() as folder, run_stub_gateway(repository, Path(folder)) as stub_gateway:
        result = soak(stub_gateway, options.calls, options.rounds)
    print(json.dumps([asdict(one) for one in result.readings], indent=0))
    print(f"{result.seconds:.0f} s, {result.statuses}, RSS {result.rss_kib_per_1000_calls:+.1f} KiB per 1000 calls")


if __name__ == "__main__":
    main()
