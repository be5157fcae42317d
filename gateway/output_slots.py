"""Pieces of shared memory that Triton writes outputs into, one for each call under way. Opened by shared_memory.

A call leases a region, which comes back when the last array that looks into it is gone. Triton may still write into the
region of a call that failed, timed out or was cancelled, so that one is never used again: Triton is asked to unregister
it until it does, which it refuses as long as it runs the call.
"""

import asyncio
import errno
import logging
import math
import mmap
import os
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from gateway.errors import EngineUnavailable
from gateway.memory_owner import SHARED_MEMORY, Owner

_log = logging.getLogger(__name__)

_LEAST_BYTES = 64 * 1024
_PAUSE_S = 30.0
"""How long no region is made after one was refused."""
_CONTROL_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_S = 3.0
_CLOSE_POLL_S = 0.05
_NO_CONNECTION = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED")
_UNKNOWN_REGION = "Unable to find shared memory region"
_HINTS = {
    "Unable to open": "it runs on another host, in a container with another /dev/shm, or as another user",
    "shared memory is disabled": "from release 26.04 on it must be started with --allow-client-shm=true",
    "protocol is restricted": "it was started with --grpc-restricted-protocol",
}
"""What to make of Triton's refusals, by words that stand in them; some have the status of a lost connection."""


class RegionsLost(EngineUnavailable):
    """Triton was started again and knows no earlier region any more; the next call gets a new one."""


class Refused(Exception):
    """There is no region to be had; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Memory for one output.

    Attributes:
        name: its name at Triton.
        memory: unmapped here when nothing refers to it any more, whatever Triton does with it.
        give_back: called when the output in it is needed no more.
    """

    name: str
    memory: mmap.mmap
    give_back: Callable[["Region"], None]

    @property
    def byte_size(self) -> int:
        """Its size, bytes."""
        return len(self.memory)

    def view(self, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the output that Triton wrote: read-only, not a copy.

        The region is given back when this array, and all made of it without copying, are gone.

        Raises:
            ValueError: the region is smaller than that.
        """
        values = np.frombuffer(self.memory, dtype, math.prod(shape))
        values.flags.writeable = False
        # Runs where the last reference is dropped, which may be a thread that pools.
        weakref.finalize(values, self.give_back, self).atexit = False
        return values.reshape(shape)


class OutputSlots:
    """The regions of one model on one Triton. Made by `open_output_slots`.

    There are as many as calls were under way at once, each as large as the largest output it was made for, and at most
    as much again is left to Triton after calls that failed; a call beyond that goes over gRPC.

    Args:
        largest_bytes: of one output.
        calls: most calls under way at once.
        show_bytes: told the size of all regions together, whenever it changes.

    Raises:
        OSError: this machine has no shared memory.
    """

    def __init__(self, largest_bytes: int, calls: int, show_bytes: Callable[[int], None]) -> None:
        self._largest_bytes = largest_bytes
        self._most_bytes = 2 * calls * largest_bytes
        self._show_bytes = show_bytes
        self._owner = Owner()
        self._active: dict[str, Region] = {}
        self._free: list[Region] = []
        self._retired: dict[str, int] = {}
        self._paused_until = 0.0

    async def make_first(self, client: InferenceServerClient) -> None:
        """Find out whether Triton can map a region of ours.

        Raises:
            Refused: it cannot.
            InferenceServerException: Triton cannot be reached.
        """
        self._free.append(await self._make(client, 1, _CONTROL_TIMEOUT_S))

    @asynccontextmanager
    async def lease(
        self, client: InferenceServerClient, byte_size: int, timeout_s: float
    ) -> AsyncIterator[Region | None]:
        """Hold a region for one call; None if there is none to be had now.

        Args:
            client: a connection to Triton, over which a new region is registered.
            byte_size: of the output.
            timeout_s: longest wait for Triton.

        Raises:
            RegionsLost: the block failed because Triton does not know the region any more.
            InferenceServerException: Triton cannot be reached.
        """
        region = await self._take(client, byte_size, timeout_s)
        try:
            yield region
        except BaseException as error:
            if region is not None:
                self._retire(region)
            if isinstance(error, InferenceServerException) and _UNKNOWN_REGION in (error.message() or ""):
                self._retire(*self._free)
                raise RegionsLost("Triton was started again.", retry_after_s=1) from error
            raise

    async def unregister_retired(self, client: InferenceServerClient, timeout_s: float) -> None:
        """Have Triton unregister what was retired; what it still uses is left for the next time.

        Raises:
            InferenceServerException: Triton cannot be reached.
        """
        for name in list(self._retired):
            if await unregister(client, name, timeout_s):
                self._retired.pop(name, None)
        self._show()

    async def close(self, client: InferenceServerClient) -> None:
        """Unregister all regions; what Triton uses for longer is left to the next gateway. Idempotent."""
        self._retire(*self._active.values())
        with suppress(InferenceServerException, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self._retired:
                    await self.unregister_retired(client, _CONTROL_TIMEOUT_S)
                    await asyncio.sleep(_CLOSE_POLL_S if self._retired else 0)
        self._retired.clear()
        self._show()
        self._owner.close()

    async def _take(self, client: InferenceServerClient, byte_size: int, timeout_s: float) -> Region | None:
        fitting = min((one for one in self._free if one.byte_size >= byte_size), key=_byte_size, default=None)
        if fitting is not None:
            self._free.remove(fitting)
            return fitting
        if time.monotonic() < self._paused_until:
            return None
        if self._free:
            self._retire(min(self._free, key=_byte_size))  # the new one takes its place
        await self.unregister_retired(client, timeout_s)
        if self._held_bytes + self._size(byte_size) > self._most_bytes:
            return None
        try:
            return await self._make(client, byte_size, timeout_s)
        except Refused as error:
            _log.warning("outputs travel over gRPC for %g s: %s", _PAUSE_S, error)
            self._paused_until = time.monotonic() + _PAUSE_S
            return None

    async def _make(self, client: InferenceServerClient, byte_size: int, timeout_s: float) -> Region:
        """Make a region and register it.

        Raises:
            Refused: there is no memory for it, or Triton cannot map it.
        """
        name = self._owner.next_name()
        size = self._size(byte_size)
        try:
            region = self._active[name] = Region(name, _map_new_file(name, size), self._give_back)
            await self._register(client, region, timeout_s)
        except OSError as error:
            raise Refused(f"{SHARED_MEMORY}: {error.strerror}") from error
        finally:
            (SHARED_MEMORY / name).unlink(missing_ok=True)
            self._show()
        return region

    async def _register(self, client: InferenceServerClient, region: Region, timeout_s: float) -> None:
        name = region.name
        try:
            await client.register_system_shared_memory(name, f"/{name}", region.byte_size, client_timeout=timeout_s)
        except BaseException as error:
            if isinstance(error, InferenceServerException) and (refusal := as_refusal(error)):
                self._active.pop(name, None)
                raise refusal from error
            self._retire(region)  # Triton may have it
            raise

    def _size(self, byte_size: int) -> int:
        """Return how large a region for that output is made: larger, so that somewhat longer ones fit too."""
        rounded = 1 << (max(byte_size, _LEAST_BYTES) - 1).bit_length()
        return max(byte_size, min(rounded, self._largest_bytes))

    def _give_back(self, region: Region) -> None:
        if region.name in self._active:
            self._free.append(region)

    def _retire(self, *regions: Region) -> None:
        for region in regions:
            if self._active.pop(region.name, None) is not None:
                self._retired[region.name] = region.byte_size
            if region in self._free:
                self._free.remove(region)

    @property
    def _held_bytes(self) -> int:
        return sum(map(_byte_size, self._active.values())) + sum(self._retired.values())

    def _show(self) -> None:
        self._show_bytes(self._held_bytes)


async def unregister(client: InferenceServerClient, name: str, timeout_s: float) -> bool:
    """Return whether Triton has unregistered the region, or never knew it; False while it uses it."""
    try:
        await client.unregister_system_shared_memory(name, client_timeout=timeout_s)
    except InferenceServerException as error:
        if error.status() in _NO_CONNECTION:
            raise
        return False
    return True


def as_refusal(error: InferenceServerException) -> Refused | None:
    """Return what Triton said as a refusal, or None if it said nothing."""
    message = error.message() or ""
    hint = next((f" ({hint})" for words, hint in _HINTS.items() if words in message), "")
    if error.status() in _NO_CONNECTION and not hint:
        return None
    return Refused(f"Triton says: {message}{hint}")


def _map_new_file(name: str, size: int) -> mmap.mmap:
    """Create the file and map it, all its memory at once: Triton would crash on a page that it cannot have."""
    space = os.statvfs(SHARED_MEMORY)
    if space.f_bavail * space.f_frsize - size < space.f_blocks * space.f_frsize / 2:
        # The Python backend's own memory grows there too, and it fails calls when it cannot.
        raise OSError(errno.ENOSPC, f"half of it must stay free, {size} bytes more are needed")
    file = os.open(SHARED_MEMORY / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def _byte_size(region: Region) -> int:
    return region.byte_size
