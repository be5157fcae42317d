"""What a connection hands to the system, and when; a transport that notes it stands in for the system."""

import asyncio

from gateway.joined_writes import JoinedWrites


class NotedTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def make() -> tuple[JoinedWrites, NotedTransport]:
    transport = NotedTransport()
    return JoinedWrites(transport, asyncio.get_running_loop()), transport


async def test_head_and_body_leave_in_one_call() -> None:
    joined, transport = make()
    joined.write(b"head ")
    joined.write(b"body")
    assert transport.written == []
    await asyncio.sleep(0)
    joined.write(b" next")
    await asyncio.sleep(0)
    assert transport.written == [b"head body", b" next"]


async def test_long_writes_leave_at_once_and_in_order() -> None:
    joined, transport = make()
    long = b"a" * (JoinedWrites.max_held_bytes + 1)
    joined.write(b"head ")
    joined.write(long)
    assert transport.written == [b"head " + long]
    joined.write(b"rest")
    await asyncio.sleep(0)
    assert transport.written == [b"head " + long, b"rest"]


async def test_closing_sends_what_is_held() -> None:
    joined, transport = make()
    joined.write(b"bye")
    joined.close()
    assert (transport.written, transport.closed) == ([b"bye"], True)
    await asyncio.sleep(0)
    assert transport.written == [b"bye"]


async def test_nothing_is_written_to_a_connection_that_was_lost_meanwhile() -> None:
    joined, transport = make()
    joined.write(b"late")
    transport.close()
    await asyncio.sleep(0)
    assert transport.written == []


async def test_all_else_is_the_transports_own() -> None:
    joined, _ = make()
    assert joined.get_extra_info("peername") == ("127.0.0.1", 1)
    assert not joined.is_closing()
