"""Reads the JSON files of a model folder; a missing or broken one is named. Called by whatever reads the folder."""

import json
from pathlib import Path
from typing import Any

from engine_build.errors import ModelFolderError


def read_json(path: Path) -> Any:
    """Parse a file that must be there.

    Raises:
        ModelFolderError: it is missing, or not JSON; the message names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(f"missing file: {path}") from None
    except (OSError, ValueError) as exc:
        raise ModelFolderError(f"cannot read {path}: {exc}") from exc


def read_json_dict(path: Path) -> dict[str, Any]:
    """Parse a file that must be there and hold an object at its top.

    Raises:
        ModelFolderError: it is missing, not JSON, or something else than an object.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise ModelFolderError(f"{path} holds no JSON object")
    return content


def read_optional_json_dict(path: Path) -> dict[str, Any]:
    """Parse a file that may be absent; absent reads as empty.

    Raises:
        ModelFolderError: it is there and not a JSON object.
    """
    return read_json_dict(path) if path.is_file() else {}
