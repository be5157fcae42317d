"""How long the gateway's event loop is blocked, and others wait, while eight huge requests are under way.

`python -m bench.event_loop [--engine none|triton] [--rounds N] [WORD]`, by hand; with a word, only the kinds of request
that have it in their name. By default the engine is a stand-in that takes no processor (see stand_in), so that what is
slow is the gateway's own doing; `--engine triton` shows a machine whose processors the engine shares. Each figure is
the least of the rounds' longest, as whatever else the machine does only adds to it.

- block: the gateway runs with a heartbeat on its own event loop, which notes how late it is at most. It counts whatever
  kept the loop from running: its own work, the interpreter lock held by a worker thread, and other processes.
- own: the same without the time in which the thread was ready to run but got no processor.
- health, short: the slowest of `GET /health/live` and of an embeddings request of two words, asked every 20 ms from
  another process; of how many a round.
"""

import argparse
import http.client
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import Event, Process, Queue
from multiprocessing.synchronize import Event as StopEvent
from pathlib import Path
from urllib.parse import urlsplit

from bench.gateway_with_heartbeat import FILE_VARIABLE
from bench.models import DEMO_MODEL, demo_repository
from bench.processes import ROOT, run_gateway
from bench.stand_in import run_gateway_on_stand_in

HUGE_REQUESTS = 8
_CHINESE = "如何更换花呗绑定银行卡这是一个很长的中文句子用来测试模型"
_JSON = {"content-type": "application/json"}
_MODULE = "bench.gateway_with_heartbeat"
_ENGINES = {"none": run_gateway_on_stand_in, "triton": run_gateway}


def _texts(count: int, words: int) -> list[str]:
    return [f"{index} {'river house ' * (words // 2)}" for index in range(count)]


def _chinese(length: int) -> str:
    return (_CHINESE * (length // len(_CHINESE) + 1))[:length]


KINDS: dict[str, Callable[[], dict[str, object]]] = {
    "nothing": lambda: {},
    "10 MB of an ignored field": lambda: {"input": "a", "user": "x" * 10_000_000},
    "10 MB, 2048 texts, cut": lambda: {"input": _texts(2048, 840), "truncate": "END"},
    "2048 texts of 512 tokens, cut": lambda: {"input": _texts(2048, 510), "truncate": "END"},
    "512 texts of 5 tokens": lambda: {"input": _texts(512, 2)},
    "32 texts of 250 tokens": lambda: {"input": _texts(32, 246)},
    "299,000 token ids": lambda: {"input": [[7592] * 146] * 2048, "truncate": "END"},
    "a text of 1 M Chinese characters": lambda: {"input": _chinese(1_000_000)},
    "the same, cut": lambda: {"input": _chinese(1_000_000), "truncate": "END"},
    "8 texts of 125,000 Chinese characters, cut": lambda: {"input": [_chinese(125_000)] * 8, "truncate": "END"},
    "32 MB of an ignored field": lambda: {"input": "a", "user": "x" * 32_000_000},
    "10 MB of lone surrogates": lambda: {"input": "a", "user": "\ud800" * 1_600_000},
}


def main() -> None:
    """Run the kinds and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.event_loop")
    parser.add_argument("--engine", choices=_ENGINES, default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("word", nargs="?", default="", help="part of the names of the kinds to run")
    arguments = parser.parse_args()
    print(
        "| 8 requests at once | block | own | health | short | of | answers | took |",
        "|---|---|---|---|---|---|---|---|",
        sep="\n",
    )
    beats = ROOT / ".cache" / "event_loop_beats"
    os.environ[FILE_VARIABLE] = str(beats)
    with _ENGINES[arguments.engine](demo_repository(), module=_MODULE, request_timeout_s=60) as server:
        address = urlsplit(server.embeddings_url).netloc
        for kind, make in KINDS.items():
            if arguments.word in kind:
                rounds = [_measure(make(), address, beats) for _ in range(arguments.rounds)]
                print(f"| {kind} | {_describe(rounds)} |", flush=True)


@dataclass(frozen=True, slots=True)
class _Round:
    """What one round gave: the longest block, own, health and short; how many were asked; statuses of the answers."""

    longest_ms: tuple[float, ...]
    asked: int
    answers: str
    took_s: float


def _describe(rounds: list[_Round]) -> str:
    figures = [f"{min(longest):.0f} ms" for longest in zip(*(one.longest_ms for one in rounds), strict=True)]
    asked, took_s = (min(values) for values in zip(*((one.asked, one.took_s) for one in rounds), strict=True))
    answers = " or ".join(sorted({one.answers for one in rounds}))
    return " | ".join([*figures, str(asked), answers, f"{took_s:.1f} s"])


def _measure(fields: dict[str, object], address: str, beats: Path) -> _Round:
    body = json.dumps({"model": DEMO_MODEL.name, **fields}).encode()
    queue: Queue[tuple[float, float, int]] = Queue()
    stop = Event()
    prober = Process(target=_probe, args=(address, stop, queue))
    prober.start()
    time.sleep(1)
    beats.unlink(missing_ok=True)  # begins anew
    time.sleep(0.1)
    started = time.perf_counter()
    answers = _send(body, address) if fields else _wait()
    took_s = time.perf_counter() - started
    time.sleep(0.3)
    stop.set()
    health_s, short_s, count = queue.get(timeout=120)
    prober.join()
    return _Round((*map(float, beats.read_text().split()), 1000 * health_s, 1000 * short_s), count, answers, took_s)


def _wait() -> str:
    time.sleep(5)
    return ""


def _send(body: bytes, address: str) -> str:
    """Send the body eight times at once, from a process that gives way to all others; return how often which status."""
    queue: Queue[list[int]] = Queue()
    sender = Process(target=_send_politely, args=(body, address, queue))
    sender.start()
    statuses = queue.get(timeout=300)
    sender.join()
    return ", ".join(f"{statuses.count(status)} x {status}" for status in sorted(set(statuses)))


def _send_politely(body: bytes, address: str, queue: "Queue[list[int]]") -> None:
    os.nice(19)
    with ThreadPoolExecutor(HUGE_REQUESTS) as threads:
        queue.put(list(threads.map(partial(_post, address, body), range(HUGE_REQUESTS))))


def _post(address: str, body: bytes, _: int) -> int:
    connection = http.client.HTTPConnection(address, timeout=300)
    connection.request("POST", "/v1/embeddings", body, _JSON)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def _probe(address: str, stop: StopEvent, queue: "Queue[tuple[float, float, int]]") -> None:
    """Ask every 20 ms, and report the slowest answers and how many there were."""
    short = json.dumps({"model": DEMO_MODEL.name, "input": ["hi", "there"]})
    connection = http.client.HTTPConnection(address, timeout=120)
    health_s, short_s, count = 0.0, 0.0, 0
    while not stop.is_set():
        started = time.perf_counter()
        _ask(connection, "GET", "/health/live")
        answered = time.perf_counter()
        _ask(connection, "POST", "/v1/embeddings", short)  # 429 while too much waits: an answer too
        if count:  # the first one connects
            health_s = max(health_s, answered - started)
            short_s = max(short_s, time.perf_counter() - answered)
        count += 1
        time.sleep(0.02)
    connection.close()
    queue.put((health_s, short_s, count))


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None) -> None:
    connection.request(method, path, body, _JSON)
    connection.getresponse().read()


if __name__ == "__main__":
    main()
