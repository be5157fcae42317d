"""What an embedded Triton has in /dev/shm, and the removal of what a kill left there. Called by server."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.embedded import preflight
from gateway.embedded.preflight import Wheel

NAME_PREFIX = "embedding-gateway-"


class Workspace:
    """What one Triton has in /dev/shm, for a `with` block: a folder of links with a lock, and the regions.

    All carry one name. The lock is held by the gateway and by all of Triton's processes, so what has an unlocked lock
    was left over by a kill and may be removed. Process ids would not tell: they are reused, and differ between
    containers that share /dev/shm.

    Attributes:
        backends: Triton's backend directory: the wheel's, and in it the stub for the running Python.
        libraries: has the shared libpython, alone, so that nothing beside it is preferred to the system's libraries.
        region_prefix: begins the names of the shared-memory regions.
        lock: file descriptor, to be inherited by Triton.
    """

    def __init__(self, wheel: Wheel) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{NAME_PREFIX}{os.getpid()}-", dir=preflight.SHARED_MEMORY))
        self.backends = self._folder / "backends"
        self.libraries = self._folder / "lib"
        self.region_prefix = f"{self._folder.name}."
        self.lock = self._lock()
        backend = wheel.server / "backends" / "python"
        link(self.backends / "python", *backend.glob("*.*"), wheel.stub)
        link(self.libraries, *filter(None, [wheel.libpython]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        remove(self._folder)
        os.close(self.lock)

    def _lock(self) -> int:
        """Create the lock; it has its name only when it is locked, so that nobody takes it for a leftover."""
        path = self._folder / "lock.new"
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        path.rename(self._folder / "lock")
        return lock


def is_one_ending() -> bool:
    """Return whether a Triton still runs whose gateway is gone: it ends by itself, and has its ports until then."""
    return any(is_ending(path) for path in preflight.SHARED_MEMORY.glob(f"{NAME_PREFIX}*/lock"))


def is_ending(path: Path) -> bool:
    """Return whether this lock is held, and the gateway that made it is gone."""
    if is_running(path.parent.name.removeprefix(NAME_PREFIX).partition("-")[0]):
        return False
    try:
        with path.open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # gone meanwhile, or another user's
        return False
    return False


def is_running(pid: str) -> bool:
    """Return whether there is a process of that id that has not ended; one may have, and not be waited for yet."""
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def remove_leftovers() -> None:
    """Remove the workspaces of Triton servers that are gone. Those of other users are left alone."""
    for path in preflight.SHARED_MEMORY.glob(f"{NAME_PREFIX}*/lock"):
        with suppress(OSError), path.open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock.fileno()).st_uid == os.getuid():
                remove(path.parent)


def remove(folder: Path) -> None:
    """Remove a workspace's regions, then its folder with the lock."""
    for region in preflight.SHARED_MEMORY.glob(f"{folder.name}.*"):
        region.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def link(folder: Path, *files: Path) -> None:
    """Make the folder, with a symbolic link to each file. Links work where /dev/shm is mounted noexec."""
    folder.mkdir(parents=True)
    for file in files:
        (folder / file.name).symlink_to(file)
