"""What no caller would send on purpose: the parser refuses it or takes it, and the server lives on."""

import json
import random
import socket

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.http.schemas import parse_embeddings_request
from tests.reliability.callers import ask, is_live
from tests.stub_gateway import StubGateway

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=3),
    max_leaves=12,
)
FIELDS = st.sampled_from(["input", "model", "encoding_format", "dimensions", "user", "truncate", "input_type", "more"])
DOCUMENTS = st.dictionaries(FIELDS, VALUES, max_size=8).map(lambda fields: {"model": "m", "input": "a", **fields})


def parse(body: bytes) -> None:
    """Parse; whatever it is, the answer is a request or one kind of error."""
    try:
        call = parse_embeddings_request(body, max_inputs=4, max_tokens=100)
    except InvalidRequest:
        return
    assert all(call.inputs)
    assert 1 <= len(call.inputs) <= 4


@given(DOCUMENTS)
@settings(max_examples=150, deadline=None)
def test_any_document(document: object) -> None:
    parse(json.dumps(document).encode())


@given(DOCUMENTS, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_documents_with_broken_bytes(document: object, changes: list[tuple[int, int]]) -> None:
    body = bytearray(json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass"))
    for place, byte in changes:
        body[place % len(body)] = byte
    parse(bytes(body))


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes(body: bytes) -> None:
    parse(body)


def test_broken_http(stub_gateway: StubGateway) -> None:
    url = stub_gateway.gateway.url
    host, _, port = url.removeprefix("http://").partition(":")
    chance = random.Random(0)
    request = (
        b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b'content-length: 46\r\n\r\n{"model": "all-MiniLM-L6-v2", "input": "tree"}'
    )
    for _ in range(150):
        broken = bytearray(request)
        for _ in range(chance.randint(1, 6)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(broken)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while received := connection.recv(65_536):
                answer += received
        assert not answer or answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), (broken, answer)
    assert is_live(url)
    assert ask(url).status == 200
