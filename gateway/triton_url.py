"""Reads GATEWAY_TRITON_URL: one endpoint, several, or a DNS name that stands for all its addresses. Called by settings.

Serving asks it for the endpoints.
"""

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass

from gateway.errors import EngineUnavailable

_DNS_SCHEME = "dns:///"
_ENDPOINT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]+):(?P<port>\d{1,5})")
_LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class TritonUrl:
    """Where Triton is.

    Attributes:
        endpoints: `host:port` of each, IPv6 addresses in brackets; exactly one where `is_name`.
        is_name: whether that one's host is a name all of whose addresses are endpoints, now and later.
    """

    endpoints: tuple[str, ...]
    is_name: bool = False

    @property
    def is_several(self) -> bool:
        """Whether there may be more than one endpoint."""
        return self.is_name or len(self.endpoints) > 1

    async def resolve(self) -> tuple[str, ...]:
        """Return all endpoints as they are now.

        Of a name with addresses of both families only the IPv4 ones: they lead to the same servers, and Triton listens
        on IPv4 unless it is told otherwise.

        Raises:
            EngineUnavailable: the name has no address.
        """
        if not self.is_name:
            return self.endpoints
        host, _, port = self.endpoints[0].rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise EngineUnavailable("The name of Triton's endpoints has no address.") from error
        addresses = {str(address[0]) for *_, address in found}
        ipv4 = sorted(f"{address}:{port}" for address in addresses if ":" not in address)
        return tuple(ipv4 or sorted(f"[{address}]:{port}" for address in addresses))


def parse_triton_url(text: str) -> TritonUrl:
    """Read `host:port`, a comma-separated list of such, or `dns:///name:port`.

    Raises:
        ValueError: it is none of these, or names an endpoint twice.
    """
    is_name = text.startswith(_DNS_SCHEME)
    parts = [part.strip() for part in text.removeprefix(_DNS_SCHEME).split(",")]
    for part in parts:
        _check_endpoint(part)
    if is_name and len(parts) > 1:
        raise ValueError(f"{_DNS_SCHEME} takes one name")
    if len(set(parts)) < len(parts):
        raise ValueError("an endpoint is there twice")
    return TritonUrl(tuple(parts), is_name)


def _check_endpoint(text: str) -> None:
    match = _ENDPOINT.fullmatch(text)
    if not match or not 0 < int(match["port"]) <= _LARGEST_PORT:
        raise ValueError(f"{text!r} is not host:port (an IPv6 address in brackets, no scheme but {_DNS_SCHEME})")
    if match["host"].startswith("["):
        ipaddress.IPv6Address(match["host"][1:-1])
