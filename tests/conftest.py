"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest

DEMO_MODEL = Path(__file__).parents[1] / "models" / "all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """Folder of the real all-MiniLM-L6-v2; the variable DEMO_MODEL names another place."""
    folder = Path(os.environ.get("DEMO_MODEL", DEMO_MODEL))
    if not (folder / "modules.json").is_file():
        pytest.fail(f"{folder} is missing: run make demo-model")
    return folder
