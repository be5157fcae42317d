"""Tells whether torch and transformers are installed, which few machines need. Called before they are used."""

import os
from importlib.util import find_spec

from engine_build.errors import MissingExtraError

INSTALL_COMMAND = "pip install '.[build]'"


def available() -> bool:
    """Whether both can be imported; imports neither."""
    return all(find_spec(name) is not None for name in ("torch", "transformers"))


def require(purpose: str) -> None:
    """Make sure that both can be imported, and that they never ask the model hub.

    Raises:
        MissingExtraError: they are not installed; the message says what they were for.
    """
    if not available():
        raise MissingExtraError(f"{purpose} needs torch and transformers: {INSTALL_COMMAND}")
    os.environ["HF_HUB_OFFLINE"] = "1"
