"""Puts a finished model directory in its place, or nothing at all. Called by build.

Triton tries to load every directory of its repository, hidden and empty ones too, and ends when one fails; files, and
directories inside a model's whose names are no numbers, it leaves alone (observed, Triton 2.51). So the work is done
beside the repository and renamed into it. A repository that is a mount point has no such place beside it: there the
work is done inside a model's directory, and only while there is no model yet, in the repository itself. A run that was
killed leaves only that directory; the next run clears it.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_build.errors import RepositoryError
from engine_build.mounts import is_mount_point
from gateway.contract import CONFIG_FILE

logger = logging.getLogger(__name__)

STAGING = ".staging"
PREVIOUS = "@previous"
"""Ends the name of a replaced directory; no model's name holds the sign."""
ARRIVING = "@arriving"
"""Ends the name of a complete directory on its way to its place."""


class Repository:
    """A folder of model directories. Use through `open_repository`, which makes sure that nobody else writes to it."""

    def __init__(self, root: Path, beside: Path | None) -> None:
        """Take the folder; `beside` is on its file system and outside of it, None where there is no such place."""
        self._root = root
        self._beside = beside

    def directory(self, name: str) -> Path:
        """Where a model is, or will be."""
        return self._root / name

    @contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        """An empty directory to write a model into; published when the block ends well, removed when it does not."""
        staging = self._staging(name)
        new = staging / name
        new.mkdir(parents=True)
        try:
            yield new
            self._publish(new, name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            # Where the model held it, the staging folder has moved along.
            shutil.rmtree(self.directory(name) / STAGING, ignore_errors=True)

    def recover(self) -> None:
        """Clear what a killed run left; a model that it had taken out or was bringing in is put in its place."""
        for arriving in self._root.glob(f"*{ARRIVING}"):
            self._arrive(arriving)
        for staging in self._leftovers():
            logger.info("clearing what an interrupted run left in %s", staging)
            for old in staging.glob(f"*{PREVIOUS}"):
                target = self.directory(old.name.removesuffix(PREVIOUS))
                if not target.exists():
                    old.rename(target)
            shutil.rmtree(staging)

    def _leftovers(self) -> list[Path]:
        places = [self._beside] if self._beside else [self._root / STAGING, *self._root.glob(f"*/{STAGING}")]
        return [place for place in places if place.is_dir()]

    def _staging(self, name: str) -> Path:
        """Where to work: beside; else in another model's directory, this one's, or the repository's root."""
        if self._beside:
            return self._beside
        hosts = sorted(path.parent for path in self._root.glob(f"*/{CONFIG_FILE}"))
        hosts.sort(key=lambda host: host.name == name)  # another model's first: it stays where it is
        return (hosts[0] if hosts else self._root) / STAGING

    def _publish(self, new: Path, name: str) -> None:
        """Swap directories by renames: POSIX cannot replace a directory that is not empty in one."""
        target, old = self.directory(name), new.parent / f"{name}{PREVIOUS}"
        if target in new.parents:
            arriving = self._root / f"{name}{ARRIVING}"
            new.rename(arriving)
            self._arrive(arriving)
            return
        try:
            if target.exists():
                target.rename(old)
            new.rename(target)
        except OSError as exc:
            if old.exists():
                old.rename(target)
            raise RepositoryError(f"cannot put the model into {target}: {exc.strerror}") from exc

    def _arrive(self, arriving: Path) -> None:
        """Put a complete directory in its place, the old one inside it, from where it is removed."""
        target = self.directory(arriving.name.removesuffix(ARRIVING))
        if target.exists():
            (arriving / STAGING).mkdir(exist_ok=True)
            target.rename(arriving / STAGING / target.name)
        arriving.rename(target)
        shutil.rmtree(target / STAGING, ignore_errors=True)


@contextmanager
def open_repository(root: Path) -> Iterator[Repository]:
    """Create the folder if need be and hold it until the block ends; another build waits.

    Raises:
        RepositoryError: it cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        root = root.resolve()
        descriptor = os.open(root, os.O_RDONLY)
    except OSError as exc:
        raise RepositoryError(f"cannot use {root} as a model repository: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        apart = is_mount_point(root) or not os.access(root.parent, os.W_OK)
        repository = Repository(root, None if apart else root.parent / f".{root.name}.staging")
        repository.recover()
        yield repository
    finally:
        os.close(descriptor)
