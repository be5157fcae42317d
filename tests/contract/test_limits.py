"""The limits of a request, and that others are answered while a huge one is refused or worked on."""

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.contract.caller import Caller, read_error, read_vectors
from tests.gateway_process import GatewayProcess
from tests.integration.triton_figures import DEMO_MODEL
from tests.stub_gateway import StubGateway

THREE_SHORT_ANSWERS_S = 3.0
"""Generous, for busy machines; bench/event_loop.py measures it."""


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_2048_inputs_are_taken(stub_caller: Caller, stub: StubGateway, encoding_format: str) -> None:
    texts = [f"text {index} {'river ' * (index % 50)}" for index in range(2048)]
    vectors = stub_caller.embed(texts, encoding_format=encoding_format)
    assert vectors.shape == (2048, 384)
    for index in (0, 1, 1000, 2047):
        np.testing.assert_allclose(vectors[index], stub.vector(texts[index]), atol=1e-5)
    assert max(len(inputs["input_ids"]) for inputs in stub.triton.requests) <= 32


@pytest.mark.parametrize("count", [2049, 10_000])
def test_more_inputs_are_not(caller: Caller, count: int) -> None:
    for value in (["some text"] * count, [[7592]] * count, [None] * count):
        error = caller.refused(value)
        assert (error["code"], error["param"]) == ("too_many_inputs", "input")
        assert "2048" in error["message"]


def test_more_tokens_in_all_are_not(caller: Caller, keyed: Caller) -> None:
    error = keyed.refused(["river " * 50] * 20)
    assert (error["code"], error["param"]) == ("max_tokens_per_request", "input")
    assert "1040" in error["message"]
    assert "1000" in error["message"]
    cut = caller.refused(["river " * 510] * 2048, truncate="END")
    assert cut["code"] == "max_tokens_per_request"
    assert "300000" in cut["message"]


def test_honest_batches_fit_into_a_body(caller: Caller) -> None:
    """Two megabytes and ten: refused for their tokens, if at all, not for their length."""
    assert caller.ask(["river " * 200] * 20, user="x" * 2_000_000).status_code == 200
    assert caller.refused(["river " * 850] * 2048)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("length", [131_072, 131_073, 1_000_000, 5_000_000])
def test_a_text_of_too_many_characters_costs_nothing(caller: Caller, gateway: GatewayProcess, length: int) -> None:
    before = cpu_s(gateway)
    error = caller.refused("中" * length)
    assert cpu_s(gateway) - before < 2  # to tokenize five million takes twenty
    assert error["code"] == "context_length_exceeded"
    unit = "tokens" if length <= 131_072 else "characters"
    assert f"has {length + (2 if unit == 'tokens' else 0)} {unit}" in error["message"]


def test_a_text_of_too_many_characters_is_cut_if_asked(caller: Caller) -> None:
    response = caller.ask("river " * 200_000, truncate="END")
    assert response.headers["x-truncated-inputs"] == "1"
    np.testing.assert_allclose(read_vectors(response)[0], caller.embed("river " * 254), atol=1e-5)


def cpu_s(gateway: GatewayProcess) -> float:
    fields = Path(f"/proc/{gateway.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(gateway: GatewayProcess) -> float:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def chunks(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b"a" * 1_000_000


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_not_held(caller: Caller, gateway: GatewayProcess, chunked: bool) -> None:
    before = resident_mib(gateway)
    headers = {} if chunked else {"content-length": str(200_000_000)}
    with httpx.Client(timeout=60) as client:
        try:
            response = client.post(f"{gateway.url}/v1/embeddings", content=chunks(200), headers=headers)
        except httpx.WriteError:
            pytest.fail("the connection was closed without an answer")
    assert response.status_code == 413
    assert read_error(response)["code"] == "request_too_large"
    assert resident_mib(gateway) - before < 100
    assert caller.ask("a").status_code == 200


def test_a_body_up_to_the_limit(keyed: Caller) -> None:
    body = json.dumps({"model": DEMO_MODEL, "input": "a"})
    assert keyed.post(body + " " * (1_000_000 - len(body))).status_code == 200
    response = keyed.post(body + " " * (1_000_001 - len(body)))
    assert response.status_code == 413
    assert "1000000" in read_error(response)["message"]


def test_a_body_that_comes_too_slowly(keyed: Caller) -> None:
    def drip() -> Iterator[bytes]:
        for byte in b'{"model": "all-MiniLM-L6-v2", "input": "a"}':
            yield bytes([byte])
            time.sleep(0.1)

    started = time.monotonic()
    try:
        response = keyed.client.post("/v1/embeddings", content=drip())
    except httpx.TransportError:  # the answer came, and the connection was closed, while it was still sending
        response = None
    assert time.monotonic() - started < 4
    if response is not None:
        assert response.status_code == 408
        assert read_error(response)["code"] == "request_timeout"


HUGE: dict[str, Callable[[], bytes]] = {
    "texts": lambda: json.dumps({"model": DEMO_MODEL, "input": ["river " * 510] * 2048, "truncate": "END"}).encode(),
    "characters": lambda: json.dumps({"model": DEMO_MODEL, "input": ["中" * 125_000] * 8, "truncate": "END"}).encode(),
    "one text": lambda: json.dumps({"model": DEMO_MODEL, "input": "中" * 1_000_000}).encode(),
    "values": lambda: b'{"model": "m", "input": [' + b"[]," * 3_000_000 + b"1]}",
    "surrogates": lambda: b'{"model": "m", "input": ["' + rb"\ud83d" * 1_600_000 + b'"]}',
}


@pytest.mark.parametrize("kind", HUGE)
def test_others_are_answered_meanwhile(stub_caller: Caller, kind: str) -> None:
    """With a stub for the engine: what a busy engine costs others is another matter."""
    body = HUGE[kind]()

    def send(_: int) -> int:
        return httpx.post(f"{stub_caller.url}/v1/embeddings", content=body, timeout=120).status_code

    slowest = 0.0
    with ThreadPoolExecutor(4) as threads:
        huge = [threads.submit(send, index) for index in range(4)]
        while not all(one.done() for one in huge):
            started = time.monotonic()
            assert stub_caller.client.get("/health/live").status_code == 200
            assert stub_caller.ask(["hi", "there"]).status_code == 200
            assert stub_caller.ask("a paragraph of ordinary length " * 20).status_code == 200
            slowest = max(slowest, time.monotonic() - started)
    assert slowest < THREE_SHORT_ANSWERS_S
    assert {one.result() for one in huge} <= {200, 400, 404, 504}
