import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.errors import StartupError
from gateway.settings import Settings, tracing_is_on


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
        ("MODEL_ALIASES", "", {}),
        ("CORS_ORIGINS", "https://example.com,*", ("https://example.com", "*")),
        ("EMBEDDED_TRITON", "true", True),
        ("TRITON_URL", "dns:///triton:8001", "dns:///triton:8001"),
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
        ("LOG_LEVEL", "loud"),
        ("LOG_LEVEL", "info,gateway.triton"),
        ("MODEL_ALIASES", "a=b"),
        ("MODEL_ALIASES", "{bad"),
        ("API_KEYS", " , "),
        ("CORS_ORIGINS", "example.com"),
        ("MAX_QUEUE_S", "inf"),
        ("TRITON_URL", "http://triton:8001"),
        ("TRITON_URL", "a:8001,a:8001"),
    ],
)
def test_nonsense_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"GATEWAY_{name}", text)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert [error["loc"][0] for error in refused.value.errors()] == [name.lower()]


@pytest.mark.parametrize("name", ["GRPC", "HTTP", "METRICS"])
def test_the_gateway_and_its_triton_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("GATEWAY_PORT", "9001")
    monkeypatch.setenv(f"GATEWAY_EMBEDDED_{name}_PORT", "9001")
    Settings()
    monkeypatch.setenv("GATEWAY_EMBEDDED_TRITON", "true")
    with pytest.raises(ValidationError, match=f"GATEWAY_PORT and GATEWAY_EMBEDDED_{name}_PORT are both 9001"):
        Settings()


def test_read_once_and_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1  # type: ignore[misc]


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "false"}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
    ],
)
def test_tracing_is_on_where_an_endpoint_is_set(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_on: bool
) -> None:
    set_only(monkeypatch, variables)
    assert tracing_is_on() is is_on


@pytest.mark.parametrize(
    "variables",
    [
        ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        ENDPOINT | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"},
    ],
)
def test_tracing_in_a_way_that_is_not_known(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    set_only(monkeypatch, variables)
    with pytest.raises(StartupError, match="OTEL_EXPORTER_OTLP_"):
        tracing_is_on()


def set_only(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
