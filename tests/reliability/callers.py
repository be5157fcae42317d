"""What callers and operators do to a gateway, with the time it took."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.triton_figures import DEMO_MODEL

ROUTE = "/v1/embeddings"


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        status: its status, 0 if the connection failed.
        took_s: how long it took.
        document: its JSON.
        headers: its headers.
    """

    status: int
    took_s: float
    document: Any
    headers: httpx.Headers

    @property
    def code(self) -> str | None:
        error: str | None = self.document["error"]["code"]
        return error


def ask(url: str, input_: str | list[str] = "a tree", headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    """Ask for one embedding."""
    started = time.monotonic()
    body = {"model": DEMO_MODEL, "input": input_, **fields}
    response = httpx.post(f"{url}{ROUTE}", json=body, headers=headers, timeout=60)
    return Answer(response.status_code, time.monotonic() - started, response.json(), response.headers)


async def ask_async(client: httpx.AsyncClient, url: str, input_: str | list[str], **headers: str) -> Answer:
    """Ask for one embedding; a failed connection is status 0."""
    started = time.monotonic()
    body = {"model": DEMO_MODEL, "input": input_, "encoding_format": "base64"}
    try:
        response = await client.post(f"{url}{ROUTE}", json=body, headers=headers)
    except httpx.TransportError:
        return Answer(0, time.monotonic() - started, None, httpx.Headers())
    return Answer(response.status_code, time.monotonic() - started, response.json(), response.headers)


def is_ready(url: str) -> bool:
    return httpx.get(f"{url}/health/ready", timeout=5).status_code == 200


def is_live(url: str) -> bool:
    return httpx.get(f"{url}/health/live", timeout=5).status_code == 200


def samples(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all of a gateway's metrics, without the prefix `gateway_`."""
    text = httpx.get(f"{url}/metrics", timeout=10).text
    return {
        (sample.name.removeprefix("gateway_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(url: str, name: str, **labels: str) -> float:
    """Return one value, 0 if it is not there; `model` is the demo model unless it is given."""
    found = samples(url)
    plain = (name, frozenset(labels.items()))
    return found.get(plain, found.get((name, frozenset({**labels, "model": DEMO_MODEL}.items())), 0.0))


def answered(url: str) -> dict[str, float]:
    """Return how many embeddings requests ended with each status."""
    return {
        dict(labels)["status"]: value
        for (name, labels), value in samples(url).items()
        if name == "requests_total" and dict(labels)["route"] == ROUTE and value
    }


def wait_until(condition: Callable[[], bool], within_s: float) -> float:
    """Wait for the condition; return how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, "waited in vain"
        time.sleep(0.02)
    return time.monotonic() - started


async def until(condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.02)
