import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GATEWAY_")]:
        monkeypatch.delenv(name)


def test_every_field_has_a_default_and_says_what_it_is() -> None:
    Settings()
    for name, field in Settings.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("PORT", "9000", 9000),
        ("MODELS", "a, b,", ("a", "b")),
        ("MODELS", "", ()),
        ("MODEL_REPOSITORY", "/models", Path("/models")),
        ("MODEL_ALIASES", '{"x/y":"a"}', {"x/y": "a"}),
        ("EMBEDDED_TRITON", "true", True),
    ],
)
def test_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    monkeypatch.setenv(f"GATEWAY_{name}", text)
    assert getattr(Settings(), name.lower()) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PORT", "70000"),
        ("REQUEST_TIMEOUT_S", "0"),
        ("REQUEST_TIMEOUT_S", "-1"),
        ("STARTUP_TIMEOUT_S", "nan"),
        ("MAX_BATCH_TOKENS", "0"),
        ("LOG_FORMAT", "xml"),
        ("MODEL_ALIASES", "a=b"),
    ],
)
def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"GATEWAY_{name}", text)
    with pytest.raises((ValidationError, ValueError)):
        Settings()


def test_read_once_and_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1  # type: ignore[misc]
