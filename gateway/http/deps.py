"""What routes ask for: the app's services, the request's record, and a caller with a right key."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gateway.errors import InvalidApiKey
from gateway.http.api_keys import ApiKeys
from gateway.http.middleware import RequestRecord
from gateway.metrics import Metrics
from gateway.registry import Registry
from gateway.settings import Settings

T = TypeVar("T")

_bearer = HTTPBearer(auto_error=False, description="One of the gateway's API keys; not needed if it was given none.")


@dataclass(frozen=True, slots=True)
class Services:
    """What lives as long as the app; made in its lifespan.

    Attributes:
        json_threads: parses and writes large bodies, off the event loop.
    """

    settings: Settings
    registry: Registry
    metrics: Metrics
    api_keys: ApiKeys
    json_threads: Executor

    async def run_json(self, call: Callable[[], T], *, is_large: bool) -> T:
        """Return what the call returns; a large one runs in a worker thread."""
        if not is_large:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self.json_threads, call)


async def get_services(request: Request) -> Services:
    """Return the app's services."""
    services: Services = request.state.services
    return services


async def get_record(request: Request) -> RequestRecord:
    """Return the request's record."""
    record: RequestRecord = request.state.record
    return record


ServicesDep = Annotated[Services, Depends(get_services)]
RecordDep = Annotated[RequestRecord, Depends(get_record)]


async def require_api_key(
    services: ServicesDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> None:
    """Let a caller with a right key pass. Runs before the body is read.

    Raises:
        InvalidApiKey: no key, or a wrong one, where one is needed.
    """
    check_api_key(services, credentials.credentials if credentials else None)


def check_api_key(services: Services, key: str | None) -> None:
    """Return if the caller's key is right, or none is needed; see `require_api_key`."""
    if not services.api_keys.required:
        return
    if not key:
        raise InvalidApiKey("No API key was sent. Send the header `Authorization: Bearer <key>`.")
    # Header values are bytes, which the framework reads as Latin-1.
    if not services.api_keys.accepts(key.encode("latin-1")):
        raise InvalidApiKey("The API key is not right.")
