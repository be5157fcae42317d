"""Puts a finished model directory in its place, or nothing at all. Called by build.

Triton loads every directory of its repository, hidden ones too, so the work is done in a directory beside the
repository and renamed into it. A run that was killed leaves only that directory; the next run clears it.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_build.errors import RepositoryError

logger = logging.getLogger(__name__)


class Repository:
    """A folder of model directories. Use through `open_repository`, which makes sure that nobody else writes to it."""

    def __init__(self, root: Path, staging: Path) -> None:
        self._root = root
        self._staging = staging

    def directory(self, name: str) -> Path:
        """Where a model is, or will be."""
        return self._root / name

    @contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        """An empty directory to write a model into; published when the block ends well, removed when it does not."""
        new = self._staging / name
        new.mkdir(parents=True)
        try:
            yield new
            self._publish(new, name)
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)

    def recover(self) -> None:
        """Clear what a killed run left; a model that it had taken out is put back."""
        if not self._staging.is_dir():
            return
        logger.info("clearing what an interrupted run left in %s", self._staging)
        for old in self._staging.glob(f"*{PREVIOUS}"):
            target = self.directory(old.name.removesuffix(PREVIOUS))
            if not target.exists():
                old.rename(target)
        shutil.rmtree(self._staging)

    def _publish(self, new: Path, name: str) -> None:
        """Swap directories by two renames: POSIX cannot replace a directory that is not empty in one."""
        target, old = self.directory(name), self._staging / f"{name}{PREVIOUS}"
        try:
            if target.exists():
                target.rename(old)
            new.rename(target)
        except OSError as exc:
            if old.exists():
                old.rename(target)
            raise RepositoryError(f"cannot put the model into {target}: {exc.strerror}") from exc


PREVIOUS = "@previous"
"""Ends the name of a replaced directory; no model's name holds the sign."""


@contextmanager
def open_repository(root: Path) -> Iterator[Repository]:
    """Create the folder if need be and hold it until the block ends; another build waits.

    Raises:
        RepositoryError: it cannot be written, or stands alone on a file system so that nothing can be renamed into it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        root = root.resolve()
        descriptor = os.open(root, os.O_RDONLY)
    except OSError as exc:
        raise RepositoryError(f"cannot use {root} as a model repository: {exc.strerror}") from exc
    try:
        if root.stat().st_dev != root.parent.stat().st_dev:
            raise RepositoryError(f"{root} is a mount point; mount its parent, so that models can be renamed into it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        repository = Repository(root, root.parent / f".{root.name}.staging")
        repository.recover()
        yield repository
    finally:
        os.close(descriptor)
