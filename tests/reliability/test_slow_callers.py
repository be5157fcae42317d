"""Callers who send their headers slowly, without end or not at all; an in-process server, and the real one."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.http_protocol import HttpProtocol
from tests.stub_gateway import StubGateway

TIMEOUT_S = 0.4


class Impatient(HttpProtocol):
    header_timeout_s = TIMEOUT_S
    max_header_bytes = 2000


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, wait longer than headers may take, and answer."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(TIMEOUT_S * 1.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=Impatient, ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
        server.should_exit = True
        await task


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def status_of(reader: asyncio.StreamReader, timeout_s: float = 2) -> int:
    async with asyncio.timeout(timeout_s):
        return int((await reader.readuntil(b"\r\n\r\n")).split()[1])


async def error_of(reader: asyncio.StreamReader) -> dict[str, str]:
    """Return the error of an answer that ends the connection."""
    async with asyncio.timeout(2):
        document = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
    error: dict[str, str] = document["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("start", [b"", b"\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n"], ids=["nothing", "line end", "some"])
async def test_headers_that_do_not_end_in_time(port: int, start: bytes) -> None:
    async with connect(port) as (reader, writer):
        writer.write(start)
        assert "did not arrive within 0.4 seconds" in (await error_of(reader))["message"]


async def test_a_byte_now_and_then_does_not_help(port: int) -> None:
    async with connect(port) as (reader, writer):
        answered = asyncio.create_task(status_of(reader))
        for byte in b"GET / HTTP/1.1\r\nx-padding: " + b"a" * 60:
            if answered.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        assert await answered == 408


async def test_a_second_request_on_a_connection_has_the_same_time(port: int) -> None:
    async with connect(port) as (reader, writer):
        for _ in range(2):  # an answer, and the time between requests, may take longer than headers
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await status_of(reader) == 200
            await reader.readexactly(2)
            await asyncio.sleep(TIMEOUT_S * 1.5)
        writer.write(b"GET / HT")
        assert await status_of(reader) == 408


def endless_line() -> bytes:
    return b"GET / HTTP/1.1\r\nx: " + b"a" * 3000


def endless_path() -> bytes:
    return b"GET /" + b"a" * 3000


def many_lines() -> bytes:
    return b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 500


@pytest.mark.parametrize("headers", [endless_line, endless_path, many_lines])
async def test_headers_that_are_too_long(port: int, headers: Callable[[], bytes]) -> None:
    async with connect(port) as (reader, writer):
        writer.write(headers())
        assert "longer than 2000 bytes" in (await error_of(reader))["message"]


async def test_a_body_is_no_header(port: int) -> None:
    async with connect(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n" + b"a" * 3000)
        await asyncio.sleep(TIMEOUT_S * 1.5)
        writer.write(b"a" * 6000)
        assert await status_of(reader) == 200


async def test_what_is_not_http_has_the_one_shape_of_errors(port: int) -> None:
    async with connect(port) as (reader, writer):
        writer.write(b"\x16\x03\x01 this is TLS, say\r\n\r\n")
        assert "Invalid HTTP request" in (await error_of(reader))["message"]


def test_the_gateways_own_limit(stub_gateway: StubGateway) -> None:
    host, _, port = stub_gateway.gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\nx-long: ")
        for _ in range(9):
            connection.sendall(b"a" * 8192)
        assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 8192 + b"\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
