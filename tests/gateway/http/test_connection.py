"""What only a real server shows: callers who vanish or stop reading, and connections that live on."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import EngineUnavailable
from gateway.http.connection import DisconnectWatch
from gateway.http.middleware import RequestRecord
from tests.gateway.http.raw_connection import connect, head, post, read_answer, until

if TYPE_CHECKING:
    from tests.gateway.http.conftest import Harness

MODEL = "acme/stub-model"
BODY = json.dumps({"model": "stub", "input": "a"}).encode()


async def test_a_connection_lives_on_after_errors(harness: "Harness") -> None:
    async with harness.server(max_body_bytes=1000) as port, connect(port) as (reader, writer):
        for request, status in [
            (post(b"{"), 400),
            (head("content-length: 0", target="GET /nope"), 404),
            (head("content-length: 5") + b"aaaaa", 400),
            (head("content-type: text/plain", "content-length: 5") + b"aaaaa", 415),
            (post(b"a" * 100_000), 413),
            (post(BODY), 200),
        ]:
            writer.write(request)
            answer = await read_answer(reader)
            assert answer[0] == status
            assert answer[1].get("connection") != "close"


async def test_a_wrong_key_does_not_end_the_connection(harness: "Harness") -> None:
    async with harness.server(api_keys=["key"]) as port, connect(port) as (reader, writer):
        writer.write(post(b"a" * 1_000_000))
        assert (await read_answer(reader))[0] == 401
        writer.write(post(BODY).replace(b"host:", b"authorization: Bearer key\r\nhost:"))
        assert (await read_answer(reader))[0] == 200


async def test_a_wrong_key_is_told_before_the_body_comes(harness: "Harness") -> None:
    async with harness.server(api_keys=["key"]) as port, connect(port) as (reader, writer):
        writer.write(head("content-length: 1000000000"))
        assert (await read_answer(reader))[0] == 401


async def test_a_body_shorter_than_announced(harness: "Harness") -> None:
    async with harness.server() as port:
        async with connect(port) as (_, writer):
            writer.write(head("content-length: 1000") + BODY)
            await writer.drain()
            await until(lambda: harness.sample("requests_in_flight") == 1)
        await until(lambda: harness.sample("requests_in_flight") == 0)
    assert harness.sample("requests_total", route="/v1/embeddings", status="499") == 1
    assert not harness.embedder.calls


async def test_callers_who_go_away_are_cancelled(harness: "Harness", caplog: pytest.LogCaptureFixture) -> None:
    harness.embedder.delay_s = 30
    async with harness.server() as port:
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for _, writer in connections:
            writer.write(post(BODY))
        await until(lambda: len(harness.embedder.calls) == 50, within_s=5)
        for _, writer in connections:
            writer.transport.abort()
        await until(lambda: harness.embedder.cancelled == 50)
        await until(lambda: harness.sample("requests_in_flight") == 0)
        harness.embedder.delay_s = 0
        async with connect(port) as (reader, writer):
            writer.write(post(BODY))
            assert (await read_answer(reader))[0] == 200
    assert harness.sample("requests_total", route="/v1/embeddings", status="499") == 50
    assert harness.sample("cancelled_requests_total", model=MODEL) == 50
    assert harness.sample("requests_total", route="/v1/embeddings", status="500") == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_error_while_the_caller_waits_is_no_cancellation(harness: "Harness") -> None:
    harness.embedder.delay_s = 0.1
    harness.embedder.error = EngineUnavailable("Triton is not there.")
    async with harness.server() as port, connect(port) as (reader, writer):
        writer.write(post(BODY))
        assert (await read_answer(reader))[0] == 503
    assert harness.sample("cancelled_requests_total", model=MODEL) == 0


async def test_pipelined_requests(harness: "Harness") -> None:
    async with harness.server() as port, connect(port) as (reader, writer):
        writer.write(post(BODY) * 3)
        for _ in range(3):
            assert (await read_answer(reader))[0] == 200
    assert harness.sample("cancelled_requests_total", model=MODEL) == 0


async def test_a_caller_who_leaves_a_large_answer(harness: "Harness") -> None:
    harness.embedder.dimensions = 768
    body = json.dumps({"model": "stub", "input": ["a"] * 2048}).encode()
    async with harness.server() as port:
        async with connect(port) as (reader, writer):
            writer.write(post(body))
            await reader.readuntil(b"\r\n\r\n")
            assert harness.sample("requests_in_flight") == 1
            writer.transport.abort()
        await until(lambda: harness.sample("requests_in_flight") == 0)
    assert harness.sample("requests_total", route="/v1/embeddings", status="499") == 1


async def test_cancellation_by_the_server_is_passed_on(harness: "Harness") -> None:
    app = harness.app()
    harness.embedder.delay_s = 30
    never: Callable[[], Awaitable[Any]] = asyncio.Event().wait
    messages = [{"type": "http.request", "body": BODY}]
    async with app.router.lifespan_context(app) as state:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/embeddings",
            "query_string": b"",
            "headers": [],
            "state": dict(state or {}),
        }

        async def receive() -> Any:
            return messages.pop() if messages else await never()

        async def send(_message: Any) -> None:
            raise AssertionError("nothing is sent")

        task = asyncio.create_task(app(scope, receive, send))
        await until(lambda: len(harness.embedder.calls) == 1, within_s=5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_who_asks_after_the_body_is_told_of_the_disconnect_too() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    asked: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(await receive())
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        asked.append(await receive())

    async def send(_message: Message) -> None:
        raise AssertionError("nothing is sent")

    record = RequestRecord("request-7")
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    messages.put_nowait({"type": "http.disconnect"})
    await DisconnectWatch(app, 60)({"type": "http", "state": {"record": record}}, messages.get, send)
    assert [message["type"] for message in asked] == ["http.request", "http.disconnect"]
    assert record.caller_gone


async def test_a_caller_who_stops_reading_is_given_up(harness: "Harness") -> None:
    harness.embedder.dimensions = 768
    body = json.dumps({"model": "stub", "input": ["a"] * 2048}).encode()
    async with harness.server(send_timeout_s=0.3) as port, connect(port) as (_, writer):
        writer.write(post(body))
        await until(lambda: harness.sample("requests_in_flight") == 1, within_s=5)
        await until(lambda: harness.sample("requests_in_flight") == 0, within_s=10)
        writer.transport.abort()
    assert harness.sample("requests_total", route="/v1/embeddings", status="499") == 1
    assert harness.sample("requests_total", route="/v1/embeddings", status="500") == 0
