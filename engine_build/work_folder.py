"""Keeps what the steps of a build made, so that a build that stopped goes on where it was. Called by engine_steps.

Each step has a digest of all that decides its result. What was made under the same digest, and is still as it was
written, is used again.
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine_build.errors import RepositoryError
from engine_build.file_hash import sha256

logger = logging.getLogger(__name__)


class WorkFolder:
    """The folder of one model's build. Use through `open_work_folder`, which keeps other builds out."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path = path
        self._force = force

    def step(self, name: str, inputs: Any, files: Sequence[str], make: Callable[[], None]) -> bool:
        """Make the files of a step unless they are there; returns whether they had to be made.

        Args:
            name: of the step.
            inputs: all that decides the result, as JSON can hold it.
            files: what the step leaves in the folder.
            make: makes them; when it raises, none of them is left.
        """
        digest = hashlib.sha256(json.dumps([name, inputs], sort_keys=True).encode()).hexdigest()
        record = self.path / f"{name}.step.json"
        if not self._force and self._is_current(record, digest, files):
            logger.info("%s: as before", name)
            return False
        logger.info("%s ...", name)
        record.unlink(missing_ok=True)
        try:
            make()
            hashes = {file: sha256(self.path / file) for file in files}
        except BaseException:
            for file in files:
                (self.path / file).unlink(missing_ok=True)
            raise
        record.write_text(json.dumps({"digest": digest, "files": hashes}, indent=1) + "\n", encoding="utf-8")
        return True

    def _is_current(self, record: Path, digest: str, files: Sequence[str]) -> bool:
        try:
            content = json.loads(record.read_text(encoding="utf-8"))
            return content["digest"] == digest and all(
                content["files"][file] == sha256(self.path / file) for file in files
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False


@contextmanager
def open_work_folder(path: Path, *, force: bool = False) -> Iterator[WorkFolder]:
    """Create the folder if need be and hold it until the block ends; another build of the model waits.

    Raises:
        RepositoryError: it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as exc:
        raise RepositoryError(f"cannot use {path} as a build folder: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield WorkFolder(path, force=force)
    finally:
        os.close(descriptor)
