"""Names regions of shared memory so that others can tell whether their owner still runs. Called by output_slots.

Each owner has a number, and holds a read lock on the byte of that number of the folder of shared memory itself: the
kernel drops it with the process, and nothing is left behind. Process ids would not do: they are reused, and differ
between containers that share the folder.
"""

import fcntl
import os
import re
import secrets
import struct
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where shm_open looks

_PREFIX = "embedding-gateway-output-"
_NAME = re.compile(rf"{_PREFIX}([0-9a-f]{{16}})-\d+")
_NUMBER_BITS = 62
_FLOCK = "hhqqi4x"
"""C's struct flock on 64-bit Linux: type, whence, start, length, process."""


class Owner:
    """One owner of regions, alive until it is closed or its process ends.

    Raises:
        OSError: there is no such folder, or it knows no locks.
    """

    def __init__(self) -> None:
        self._number = secrets.randbits(_NUMBER_BITS)
        self._named = 0
        self._folder: int | None = _open_folder()
        # Of the open file, not of the process: those of a process go when it closes the folder anywhere else.
        fcntl.fcntl(self._folder, fcntl.F_OFD_SETLK, _flock(fcntl.F_RDLCK, self._number))

    def next_name(self) -> str:
        """Return a name that no region had before."""
        self._named += 1
        return f"{_PREFIX}{self._number:016x}-{self._named}"

    def close(self) -> None:
        """Be dead to others. Idempotent."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def is_left_over(name: str) -> bool:
    """Say whether that is a region's name whose owner is dead, in whatever container that shares the folder."""
    match = _NAME.fullmatch(name)
    return match is not None and not _is_alive(int(match[1], 16))


def remove_left_over_files() -> None:
    """Unlink the regions of owners that died before they did it themselves. Those of other users are left alone."""
    for path in SHARED_MEMORY.glob(f"{_PREFIX}*"):
        if is_left_over(path.name):
            with suppress(OSError):
                path.unlink()


def _is_alive(number: int) -> bool:
    folder = _open_folder()
    try:
        lock = fcntl.fcntl(folder, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, number))
    finally:
        os.close(folder)
    return bool(struct.unpack(_FLOCK, lock)[0] != fcntl.F_UNLCK)


def _open_folder() -> int:
    return os.open(SHARED_MEMORY, os.O_RDONLY | os.O_DIRECTORY)


def _flock(kind: int, number: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, number, 1, 0)
