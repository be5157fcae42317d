"""Callers who go away: noticed at once, down to the call at Triton, and no error of anybody's."""

import json
import socket
import time
from contextlib import ExitStack

from tests.integration.triton_figures import DEMO_MODEL
from tests.reliability.callers import answered, ask, sample, wait_until
from tests.stub_gateway import StubGateway


def send_request(url: str, input_: list[str]) -> socket.socket:
    """Send a request and return the connection, on which the answer would come."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps({"model": DEMO_MODEL, "input": input_}).encode()
    connection = socket.create_connection((host, int(port)), timeout=5)
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + body)
    return connection


def test_fifty_callers_go_away(stub_gateway: StubGateway) -> None:
    url, triton = stub_gateway.gateway.url, stub_gateway.triton
    cancelled, errors = answered(url).get("499", 0), answered(url).get("500", 0)
    triton.delay_s = 20
    with ExitStack() as connections:
        for number in range(50):
            connections.enter_context(send_request(url, [f"caller {number} " + "tree " * number]))
        wait_until(lambda: sample(url, "requests_in_flight") == 51, 10)  # 50 and the question itself
        started_calls = sample(url, "batch_rows_count")
    noticed_s = wait_until(lambda: sample(url, "requests_in_flight") == 1, 5)
    assert noticed_s < 0.5
    wait_until(lambda: triton.cancelled >= 2, 0.5)
    triton.delay_s = 0
    after = ask(url, "a live request")
    assert (after.status, after.took_s < 0.5) == (200, True)
    for gauge in ("queued_inputs", "queued_tokens", "busy_slots"):
        assert sample(url, gauge) == 0
    assert answered(url)["499"] - cancelled == 50
    assert answered(url).get("500", 0) == errors
    # What waited was dropped: only the live request made another call.
    assert sample(url, "batch_rows_count") == started_calls + 1


def test_a_caller_goes_away_between_the_batches_of_one_request(stub_gateway: StubGateway) -> None:
    url, triton = stub_gateway.gateway.url, stub_gateway.triton
    triton.delay_s = 0.3
    with send_request(url, ["tree"] * 1000):
        wait_until(lambda: len(triton.requests) >= 4, 10)
    time.sleep(0.5)
    calls = len(triton.requests)
    time.sleep(1)
    assert len(triton.requests) == calls < 20
    assert sample(url, "busy_slots") == 0
