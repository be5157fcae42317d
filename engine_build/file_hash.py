"""Hashes of files, by which all is compared. Pure but for the reading."""

import hashlib
from pathlib import Path


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
