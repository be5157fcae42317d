"""`python -m bench.gateway_with_heartbeat`: the gateway as ever, with a heartbeat on its event loop. Run by event_loop.

Every millisecond it looks how late it is. The longest delay goes to the file that the variable names, with and without
the time in which the thread could have run but got no processor. Removing the file begins anew.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from gateway import __main__ as gateway
from gateway import server
from gateway.registry import Registry

FILE_VARIABLE = "BENCH_HEARTBEAT_FILE"
_BEAT_S = 0.001
_WRITE_EVERY_S = 0.05


async def _beat(path: Path) -> None:
    longest_s = longest_own_s = 0.0
    waited_file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    last = written = time.perf_counter()
    waited_s = _waited_s(waited_file)
    while True:
        await asyncio.sleep(_BEAT_S)
        late_s = time.perf_counter() - last - _BEAT_S
        before_s, waited_s = waited_s, _waited_s(waited_file)
        longest_s = max(longest_s, late_s)
        longest_own_s = max(longest_own_s, late_s - (waited_s - before_s))
        if time.perf_counter() - written > _WRITE_EVERY_S:
            if not _write(path, longest_s, longest_own_s):
                longest_s = longest_own_s = 0.0
            written = time.perf_counter()
        last, waited_s = time.perf_counter(), _waited_s(waited_file)


def _waited_s(file: int) -> float:
    """Return how long the thread has been ready to run without a processor. Source: Linux, sched-stats."""
    return int(os.pread(file, 100, 0).split()[1]) / 1e9


def _write(path: Path, longest_s: float, longest_own_s: float) -> bool:
    """Write both in milliseconds; return whether the file was there."""
    was_there = path.exists()
    path.with_suffix(".new").write_text(f"{1000 * longest_s} {1000 * longest_own_s}")
    path.with_suffix(".new").replace(path)
    return was_there


def main() -> int:
    """Run the gateway; its event loop beats as long as its models are open."""
    open_registry = server.open_registry

    @asynccontextmanager
    async def open_with_heartbeat(*arguments: Any, **options: Any) -> AsyncIterator[Registry]:
        async with open_registry(*arguments, **options) as registry:
            beat = asyncio.create_task(_beat(Path(os.environ[FILE_VARIABLE])))
            yield registry
            beat.cancel()
            with suppress(asyncio.CancelledError):
                await beat

    server.open_registry = open_with_heartbeat
    return gateway.main()


if __name__ == "__main__":
    sys.exit(main())
