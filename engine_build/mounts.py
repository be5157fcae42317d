"""Tells whether a folder is a mount point: nothing can be renamed into it from outside. Called by repository."""

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
"""The kernel's list, which has bind mounts too; comparing devices would miss those."""


def is_mount_point(folder: Path) -> bool:
    """Whether something is mounted on this folder, given as an absolute path without links."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return folder.stat().st_dev != folder.parent.stat().st_dev
    return str(folder) in {_unescaped(line.split(" ")[4]) for line in lines}


def _unescaped(path: str) -> str:
    r"""Turn `\040` into a blank, and so on."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
