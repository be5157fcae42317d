"""Mixed traffic on a gateway, for as long as a block runs: texts of many lengths, batches, and calls that go wrong."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

TEXT = "the quick brown fox jumps over the lazy dog while forty two engines embed every text they are given"
MODEL = "all-MiniLM-L6-v2"


@contextmanager
def traffic(url: str, callers: int = 6) -> Iterator[None]:
    """Send requests to the gateway from some threads, each waiting for its answers, until the block ends."""
    stop = threading.Event()
    threads = [threading.Thread(target=_call, args=[url, seed, stop]) for seed in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _call(url: str, seed: int, stop: threading.Event) -> None:
    choose, words = random.Random(seed), TEXT.split()
    with httpx.Client(base_url=url, timeout=30) as client:
        while not stop.wait(0.02):
            texts = [" ".join(choose.choices(words, k=choose.randint(1, 90))) for _ in range(choose.choice((1, 1, 8)))]
            client.post("/v1/embeddings", json={"model": MODEL, "input": texts})
            if choose.random() < 0.05:
                client.post("/v1/embeddings", json={"model": "no-such-model", "input": "x"})
                # A caller that does not wait for its answer.
                with suppress(httpx.TimeoutException):
                    client.post("/v1/embeddings", json={"model": MODEL, "input": texts * 8}, timeout=0.01)
