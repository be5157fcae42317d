"""How long the gateway's event loop is blocked, and others wait, while eight huge requests are under way.

`python -m bench.event_loop [WORD]`, by hand; with a word, only the kinds of request that have it in their name:

- block: the gateway runs with a heartbeat on its own event loop, which notes how late it is at most. It counts whatever
  kept the loop from running: its own work, the interpreter lock held by a worker thread, and other processes.
- own: the same without the time in which the thread was ready to run but got no processor. On a machine of few cores,
  shared with the embedded Triton and whoever sends the requests, only this is the gateway's own doing.
- health, short: the slowest of `GET /health/live` and of an embeddings request of two words, asked every 20 ms from
  another process.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Event, Process, Queue
from multiprocessing.synchronize import Event as StopEvent
from pathlib import Path

import httpx

from bench.gateway_with_heartbeat import FILE_VARIABLE
from bench.models import DEMO_MODEL, demo_repository
from bench.processes import ROOT, run_gateway

HUGE_REQUESTS = 8
_CHINESE = "如何更换花呗绑定银行卡这是一个很长的中文句子用来测试模型"


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
    "299,000 token ids": lambda: {"input": [[7592] * 146] * 2048, "truncate": "END"},
    "a text of 1 M Chinese characters": lambda: {"input": _chinese(1_000_000)},
    "the same, cut": lambda: {"input": _chinese(1_000_000), "truncate": "END"},
    "8 texts of 125,000 Chinese characters, cut": lambda: {"input": [_chinese(125_000)] * 8, "truncate": "END"},
}


def main() -> None:
    """Run the kinds and print the table."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    print(
        "| 8 requests at once | block | own | health | short | answers | took |",
        "|---|---|---|---|---|---|---|",
        sep="\n",
    )
    beats = ROOT / ".cache" / "event_loop_beats"
    os.environ[FILE_VARIABLE] = str(beats)
    with run_gateway(demo_repository(), module="bench.gateway_with_heartbeat", request_timeout_s=60) as server:
        base = server.embeddings_url.removesuffix("/v1/embeddings")
        for kind, make in ((kind, make) for kind, make in KINDS.items() if word in kind):
            print(_measure(kind, make(), base, beats), flush=True)


def _measure(kind: str, fields: dict[str, object], base: str, beats: Path) -> str:
    body = json.dumps({"model": DEMO_MODEL.name, **fields}).encode()
    queue: Queue[tuple[float, float]] = Queue()
    stop = Event()
    prober = Process(target=_probe, args=(base, stop, queue))
    prober.start()
    time.sleep(1)
    beats.unlink(missing_ok=True)  # begins anew
    time.sleep(0.1)
    started = time.perf_counter()
    answers = _send(body, base) if fields else _wait()
    took_s = time.perf_counter() - started
    time.sleep(0.3)
    stop.set()
    health_s, short_s = queue.get(timeout=120)
    prober.join()
    figures = [*map(float, beats.read_text().split()), 1000 * health_s, 1000 * short_s]
    return f"| {kind} | {' | '.join(f'{ms:.0f} ms' for ms in figures)} | {answers} | {took_s:.1f} s |"


def _wait() -> str:
    time.sleep(5)
    return ""


def _send(body: bytes, base: str) -> str:
    headers = {"content-type": "application/json"}

    def one(_: int) -> int:
        return httpx.post(f"{base}/v1/embeddings", content=body, headers=headers, timeout=300).status_code

    with ThreadPoolExecutor(HUGE_REQUESTS) as threads:
        statuses = sorted(threads.map(one, range(HUGE_REQUESTS)))
    return ", ".join(f"{statuses.count(status)} x {status}" for status in sorted(set(statuses)))


def _probe(base: str, stop: StopEvent, queue: "Queue[tuple[float, float]]") -> None:
    """Ask every 20 ms, and report the slowest answers."""
    health_s = short_s = 0.0
    short = {"model": DEMO_MODEL.name, "input": ["hi", "there"]}
    with httpx.Client(timeout=120) as client:
        client.get(f"{base}/health/live")
        while not stop.is_set():
            started = time.perf_counter()
            client.get(f"{base}/health/live").raise_for_status()
            answered = time.perf_counter()
            client.post(f"{base}/v1/embeddings", json=short)  # 429 while too much waits: an answer too
            health_s = max(health_s, answered - started)
            short_s = max(short_s, time.perf_counter() - answered)
            time.sleep(0.02)
    queue.put((health_s, short_s))


if __name__ == "__main__":
    main()
