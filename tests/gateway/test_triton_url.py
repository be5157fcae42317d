import socket
from typing import Any

import pytest

from gateway.errors import EngineUnavailable
from gateway.triton_url import TritonUrl, parse_triton_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("triton:8001", TritonUrl(("triton:8001",))),
        ("a:8001, b:8002", TritonUrl(("a:8001", "b:8002"))),
        ("[::1]:8001,10.0.0.1:8001", TritonUrl(("[::1]:8001", "10.0.0.1:8001"))),
        ("dns:///triton.models.svc:8001", TritonUrl(("triton.models.svc:8001",), is_name=True)),
    ],
)
def test_the_three_forms(text: str, expected: TritonUrl) -> None:
    assert parse_triton_url(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("triton", "not host:port"),
        ("", "not host:port"),
        ("a:8001,", "not host:port"),
        ("http://triton:8001", "no scheme"),
        ("dns://1.1.1.1/triton:8001", "not host:port"),
        ("::1:8001", "in brackets"),
        ("[::g]:8001", "not host:port"),
        ("[1:2]:8001", "1:2"),
        ("a:0", "not host:port"),
        ("a:65536", "not host:port"),
        ("a:8001,a:8001", "twice"),
        ("dns:///a:8001,b:8001", "one name"),
    ],
)
def test_nonsense_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_triton_url(text)


def test_only_one_plain_endpoint_is_surely_one() -> None:
    assert not parse_triton_url("triton:8001").is_several
    assert parse_triton_url("a:8001,b:8001").is_several
    assert parse_triton_url("dns:///triton:8001").is_several


async def test_endpoints_of_a_list_are_not_looked_up() -> None:
    assert await parse_triton_url("no.such.host.invalid:8001,[::1]:1").resolve() == (
        "no.such.host.invalid:8001",
        "[::1]:1",
    )


async def test_a_real_name() -> None:
    assert await parse_triton_url("dns:///localhost:8001").resolve() == ("127.0.0.1:8001",)


async def test_an_address_in_place_of_a_name() -> None:
    assert await parse_triton_url("dns:///[::1]:8001").resolve() == ("[::1]:8001",)


async def test_a_name_without_an_address() -> None:
    with pytest.raises(EngineUnavailable, match="no address"):
        await parse_triton_url("dns:///no.such.host.invalid:8001").resolve()


@pytest.mark.parametrize(
    ("addresses", "endpoints"),
    [
        (["10.0.0.2", "10.0.0.1", "10.0.0.2"], ("10.0.0.1:8001", "10.0.0.2:8001")),
        (["fd00::1", "10.0.0.1"], ("10.0.0.1:8001",)),
        (["fd00::2", "fd00::1"], ("[fd00::1]:8001", "[fd00::2]:8001")),
    ],
)
async def test_all_addresses_of_a_name(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], endpoints: tuple[str, ...]
) -> None:
    """The resolver is a fake: this machine's has no name with several addresses."""

    def fake_getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "triton"
        kinds = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [(kind, socket.SOCK_STREAM, 6, "", (one, port)) for kind, one in zip(kinds, addresses, strict=True)]

    monkeypatch.setattr("socket.getaddrinfo", lambda host, port, *_, **__: fake_getaddrinfo(host, port))
    assert await parse_triton_url("dns:///triton:8001").resolve() == endpoints
