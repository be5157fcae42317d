"""Bodies through a real server: too long, too slow, too many at once."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.gateway.http.raw_connection import connect, head, post, read_answer, until

if TYPE_CHECKING:
    from tests.gateway.http.conftest import Harness

BODY = json.dumps({"model": "stub", "input": "a"}).encode()


@pytest.mark.parametrize("length", [999, 1000])
async def test_a_body_up_to_the_limit(harness: "Harness", length: int) -> None:
    body = BODY + b" " * (length - len(BODY))
    async with harness.server(max_body_bytes=1000) as port, connect(port) as (reader, writer):
        writer.write(post(body))
        assert (await read_answer(reader))[0] == 200
        writer.write(head("transfer-encoding: chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert (await read_answer(reader))[0] == 200


async def test_an_announced_body_over_the_limit(harness: "Harness") -> None:
    async with harness.server(max_body_bytes=1000) as port, connect(port) as (reader, writer):
        writer.write(head("content-length: 1001", "expect: 100-continue"))
        status, _, document = await read_answer(reader)
        assert status == 413
        assert document["error"]["code"] == "request_too_large"


async def test_a_chunked_body_over_the_limit(harness: "Harness") -> None:
    async with harness.server(max_body_bytes=100_000) as port, connect(port) as (reader, writer):
        writer.write(head("transfer-encoding: chunked"))
        for _ in range(11):
            writer.write(b"%x\r\n%b\r\n" % (10_000, b"a" * 10_000))
        await writer.drain()
        status, _, document = await read_answer(reader)
        assert status == 413
        assert document["error"]["code"] == "request_too_large"
        # The rest is read and dropped: the connection can be used again.
        writer.write(b"0\r\n\r\n" + post(BODY))
        assert (await read_answer(reader))[0] == 200


async def test_a_body_over_the_limit_is_not_held(harness: "Harness") -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"a" * 100_000

    tracemalloc.start()
    try:
        async with harness.server(max_body_bytes=1_000_000) as port, httpx.AsyncClient() as client:
            tracemalloc.reset_peak()
            response = await client.post(f"http://127.0.0.1:{port}/v1/embeddings", content=body())
            _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == 413
    assert peak_bytes < 10_000_000


async def test_a_slow_body_is_cut_off(harness: "Harness") -> None:
    async with harness.server(body_timeout_s=0.3) as port, connect(port) as (reader, writer):
        writer.write(head(f"content-length: {len(BODY)}"))
        for byte in BODY[:5]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        async with asyncio.timeout(1):
            status, headers, document = await read_answer(reader)
            assert status == 408
            assert headers["connection"] == "close"
            assert document["error"]["code"] == "request_timeout"
            assert await reader.read() == b""


async def test_bodies_that_are_too_long_together(harness: "Harness") -> None:
    harness.embedder.delay_s = 30
    long_body = BODY + b" " * 900
    async with harness.server(max_bodies_bytes=2000) as port, AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect(port)) for _ in range(3)]
        for _, writer in connections[:2]:
            writer.write(post(long_body))
        await until(lambda: len(harness.embedder.calls) == 2, within_s=5)
        reader, writer = connections[2]
        writer.write(post(long_body))
        status, headers, document = await read_answer(reader)
        assert (status, headers["retry-after"], document["error"]["code"]) == (429, "1", "overloaded")
        assert harness.sample("refused_requests_total", limit="bodies") == 1
        # A short one still fits, and the connection goes on.
        harness.embedder.delay_s = 0
        writer.write(post(BODY))
        assert (await read_answer(reader))[0] == 200
        # Whoever goes away leaves room, and so does an answer.
        connections[0][1].transport.abort()
        await until(lambda: harness.embedder.cancelled == 1, within_s=5)
        for _ in range(3):
            writer.write(post(long_body))
            assert (await read_answer(reader))[0] == 200
