"""Sixteen callers at once get what each gets alone: nothing that one request sets is seen by another."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gateway.types import Float32Array
from tests.contract.caller import Caller

SECONDS = 6
REQUESTS: list[tuple[Any, dict[str, Any]]] = [
    (["river " * 200, "word"], {}),
    ("hello", {}),
    ("river " * 800, {"truncate": "END"}),
    ("house " + "river " * 800, {"truncate": "START"}),
    ("a short text, with punctuation", {"encoding_format": "base64"}),
    (["如何更换花呗绑定银行卡?", "x" * 150, " "], {}),
    ([7592, 1010, 2088], {"dimensions": 8}),
    ([f"text {index}" for index in range(40)], {}),
]


def test_no_answer_depends_on_the_others(caller: Caller) -> None:
    expected = [caller.embed_counting(value, **fields) for value, fields in REQUESTS]
    deadline = time.monotonic() + SECONDS

    def run(seed: int) -> int:
        source = random.Random(seed)
        count = 0
        with Caller(caller.url) as own:
            while time.monotonic() < deadline:
                index = source.randrange(len(REQUESTS))
                value, fields = REQUESTS[index]
                assert_same(own.embed_counting(value, **fields), expected[index])
                count += 1
        return count

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(run, range(16))) > 50


def test_cutting_and_refusing_at_once(caller: Caller) -> None:
    """The library's truncation is shared state: with it, some of these would be cut to another call's length."""
    text = "river " * 300

    def run(index: int) -> None:
        with Caller(caller.url) as own:
            for _ in range(10):
                if index % 2:
                    assert own.embed_counting(text, truncate="END")[1] == 256
                else:
                    assert "302 tokens" in own.refused(text)["message"]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(run, range(8)))


def assert_same(got: tuple[Float32Array, int], expected: tuple[Float32Array, int]) -> None:
    assert got[1] == expected[1]
    assert got[0].shape == expected[0].shape
    assert np.einsum("nd,nd->n", got[0], expected[0]).min() >= 0.9999
