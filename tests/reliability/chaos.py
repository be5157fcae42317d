"""Kills and pauses the real Triton at random under a constant mixed load: `python -m tests.reliability.chaos`.

Every answer must be right or a documented error, none may come after its deadline, and the books must balance: what
callers sent is what the gateway counted.
"""

import argparse
import asyncio
import base64
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.gateway_process import ROOT, run_gateway
from tests.integration.texts import TEXTS
from tests.reliability.callers import answered, sample, wait_until
from tests.reliability.raw import Request, send
from tests.reliability.restartable import RestartableTriton

REQUEST_TIMEOUT_S = 10.0
GRACE_S = 3.0
"""How much later than its deadline an answer may be seen on a busy machine."""
ERRORS = {
    400: {"empty_input", "context_length_exceeded"},
    429: {"overloaded"},
    503: {"engine_unavailable"},
    504: {"engine_timeout"},
}

Vectors = dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]


@dataclass
class Report:
    """What callers saw.

    Attributes:
        sent: calls made.
        outcomes: how many ended with each status; `left` for callers who left.
        faults: what was done to Triton.
        wrong: descriptions of answers that are neither right nor documented, or that came too late.
        recoveries_s: the longest time from Triton's return to the first 200, by fault.
        counted: what the gateway counted, by status.
    """

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    recoveries_s: dict[str, float] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    @property
    def balances(self) -> bool:
        """Whether the gateway counted what callers sent: a status each, and 499 or an answer for those who left."""
        more = {
            status: self.counted.get(status, 0) - seen for status, seen in self.outcomes.items() if status != "left"
        }
        unseen = self.counted.get("499", 0) + sum(more.values())
        return min(more.values()) >= 0 and unseen == self.outcomes["left"] and sum(self.counted.values()) == self.sent


class Callers:
    """Sends the mixed load and judges what comes back.

    Args:
        port: the gateway's.
        rate: calls a second.
        vectors: the right vector of each text.
        report: filled here.
    """

    def __init__(self, port: int, rate: float, vectors: Vectors, report: Report, seed: int) -> None:
        self._port = port
        self._rate = rate
        self._vectors = vectors
        self._report = report
        self._chance = random.Random(seed)

    async def run(self, seconds: float) -> None:
        """Call at a constant rate; return when every call has ended."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as calls:
            while (elapsed := time.monotonic() - started) < seconds:
                while self._report.sent < elapsed * self._rate:
                    self._report.sent += 1
                    calls.create_task(self._call(self._next_request()))
                await asyncio.sleep(0.01)

    def _next_request(self) -> Request:
        kind = self._chance.random()
        texts = self._chance.sample(list(self._vectors), self._chance.randint(1, 6))
        if kind < 0.05:
            return Request([*texts, ""])
        if kind < 0.1:
            return Request("tree " * 400)
        if kind < 0.25:
            return Request(texts, leave_after_s=self._chance.uniform(0.01, 1))
        if kind < 0.4:
            return Request(texts, {"x-request-timeout-s": f"{self._chance.uniform(0.05, 3):.3f}"})
        return Request(texts if kind < 0.8 else texts[0])

    async def _call(self, request: Request) -> None:
        started = time.monotonic()
        answer = await send(self._port, request)
        took_s = time.monotonic() - started
        self._report.outcomes["left" if answer is None else str(answer[0])] += 1
        if answer is None:
            return
        deadline_s = float(request.headers.get("x-request-timeout-s", REQUEST_TIMEOUT_S))
        if took_s > deadline_s + GRACE_S:
            self._report.wrong.append(f"{answer[0]} after {took_s:.1f} s, with a deadline of {deadline_s:.1f} s")
        if fault := self._find_fault(request, *answer):
            self._report.wrong.append(fault)

    def _find_fault(self, request: Request, status: int, body: bytes) -> str | None:
        document = json.loads(body)
        if status != 200:
            code = document["error"]["code"]
            return None if code in ERRORS.get(status, ()) else f"{status} {code}"
        texts = [request.input] if isinstance(request.input, str) else request.input
        if len(document["data"]) != len(texts):
            return f"{len(document['data'])} vectors for {len(texts)} texts"
        for text, one in zip(texts, document["data"], strict=True):
            vector = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
            if not float(vector @ self._vectors[text]) > 0.9999:
                return "a vector is not its text's"
        return None


def torment(triton: RestartableTriton, seconds: float, report: Report, seed: int, is_back: Callable[[], bool]) -> None:
    """Kill and pause Triton at random for that time; leave it running. For the main thread."""
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(chance.uniform(2, 5))
        fault = chance.choice(["kill", "pause", "short pause"])
        report.faults[fault] += 1
        if fault == "kill":
            triton.kill()
            time.sleep(chance.uniform(0, 3))
            triton.start()
        else:
            triton.pause()
            time.sleep(chance.uniform(0.2, 1.5) if fault == "short pause" else chance.uniform(4, 8))
            triton.resume()
        report.recoveries_s[fault] = max(wait_until(is_back, 20), report.recoveries_s.get(fault, 0))


def right_vectors(port: int) -> Vectors:
    """Ask for the vectors in peace; what they should be is held by other tests."""
    texts = [text for text in TEXTS if len(text) < 200]
    answer = asyncio.run(send(port, Request(texts, fields={"truncate": "END"})))
    assert answer is not None
    data = json.loads(answer[1])["data"]
    return {
        text: np.frombuffer(base64.b64decode(one["embedding"]), "<f4").copy()
        for text, one in zip(texts, data, strict=True)
    }


def run_chaos(
    triton: RestartableTriton,
    repository: Path,
    log: Path,
    *,
    seconds: float,
    rate: float,
    seed: int,
    workers: int = 1,
    steady: RestartableTriton | None = None,
) -> Report:
    """Torment Triton for that time, under load; return what callers saw and the gateway counted.

    A second one, `steady`, is left in peace; then nobody may be refused.
    """
    urls = [each.url for each in (triton, steady) if each]
    settings: dict[str, Any] = {"model_repository": repository, "triton_url": ",".join(urls), "workers": workers}
    with run_gateway(log, request_timeout_s=REQUEST_TIMEOUT_S, **settings) as gateway, ThreadPoolExecutor(1) as thread:
        port = int(gateway.url.rpartition(":")[2])
        vectors = right_vectors(port)
        before = Counter(answered(gateway.url))
        probes = Counter[str]()

        def is_back() -> bool:
            answer = asyncio.run(send(port, Request("A")))
            probes[str(answer[0] if answer else 0)] += 1
            return answer is not None and answer[0] == 200

        report = Report()
        load = thread.submit(asyncio.run, Callers(port, rate, vectors, report, seed).run(seconds))
        torment(triton, seconds, report, seed, is_back)
        load.result()
        wait_until(lambda: sample(gateway.url, "requests_in_flight") == 1, 15)
        if steady and (refused := report.outcomes["503"]):
            report.wrong.append(f"{refused} were refused though one Triton was there")
        counted = Counter(answered(gateway.url)) - before - probes
        report.counted = {status: int(count) for status, count in counted.items()}
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--rate", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steady", action="store_true", help="with a second Triton that is left in peace")
    options = vars(parser.parse_args())
    repository = ROOT / ".cache" / "test_triton_repo"
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        triton, other = (stack.enter_context(RestartableTriton(repository)) for _ in range(2))
        triton.start()
        steady = other if options.pop("steady") else None
        if steady:
            steady.start()
        report = run_chaos(triton, repository, Path(folder, "gateway.log"), steady=steady, **options)
    print(f"sent {report.sent}, seen {dict(report.outcomes)}, counted {report.counted}: balances {report.balances}")
    longest = {fault: round(seconds, 2) for fault, seconds in report.recoveries_s.items()}
    print(f"faults {dict(report.faults)}, recovered within seconds {longest}")
    print("\n".join(report.wrong) or "nothing wrong, nothing late")
    raise SystemExit(bool(report.wrong) or not report.balances)


if __name__ == "__main__":
    main()
