"""The one place that reads the environment: a frozen Settings from GATEWAY_* variables, read once at start.

OpenTelemetry's own OTEL_* variables are read by its SDK; here only whether they ask for spans.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway.errors import StartupError
from gateway.logs import parse_levels
from gateway.triton_url import parse_triton_url

_OTLP_PROTOCOL = "http/protobuf"


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _split_keys(value: object) -> object:
    keys = _split(value)
    if not keys and isinstance(value, str) and value.strip():
        raise ValueError("there is no key in it, and anyone could call")
    return keys


def _parse_object(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value) if value.strip() else {}
    except orjson.JSONDecodeError:
        raise ValueError('not a JSON object such as {"alias": "model"}') from None


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/]+", origin):
            raise ValueError(f"{origin!r} is no origin; one is https://example.com, or * for any")
    return origins


def _check_triton_url(value: str) -> str:
    parse_triton_url(value)
    return value


def _check_levels(text: str) -> str:
    parse_levels(text)
    return text


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class Settings(BaseSettings):
    """How this gateway runs. Each field is the variable GATEWAY_<FIELD>; lists are comma-separated."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on")
    workers: int = Field(1, ge=1, le=64, description="processes that serve; each has its own queue and slots")
    drain_s: float = Field(
        5.0,
        ge=0,
        le=3600,
        description="how long SIGTERM leaves the port open while ready says 503, so that balancers notice, seconds",
    )
    log_level: Annotated[str, AfterValidator(_check_levels)] = Field(
        "info",
        description="least severe level logged: `debug`, `info`, `warning` or `error`; single modules may have one of"
        " their own: `info,gateway.http=debug`",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="`json`: one object a line; `text` for people; `auto`: text on a terminal, else json"
    )

    triton_url: Annotated[str, AfterValidator(_check_triton_url)] = Field(
        "127.0.0.1:8001",
        description="Triton's gRPC endpoint, `host:port`; several with commas between; `dns:///name:port` for all"
        " addresses of a name",
    )
    startup_timeout_s: Seconds = Field(300.0, description="longest wait for Triton at start, seconds")
    shared_memory: Literal["auto", "on", "off"] = Field(
        "auto",
        description="how token embeddings come from Triton: through shared memory where it works (`auto`), or else no"
        " start (`on`), or over gRPC (`off`)",
    )

    model_repository: Path = Field(
        Path("triton_repo"), description="folder of the model directories, shared with Triton"
    )
    models: CommaSeparated = Field((), description="model directories to serve; empty: every one in the repository")
    model_aliases: Annotated[dict[str, str], NoDecode, BeforeValidator(_parse_object)] = Field(
        {}, description="other names of served models, a JSON object"
    )
    unnormalized_models: CommaSeparated = Field((), description="models whose vectors are not scaled to unit length")

    request_timeout_s: Seconds = Field(30.0, description="deadline of one request over all its parts, seconds")
    max_inputs: PositiveInt = Field(2048, description="most inputs of one request")
    max_request_tokens: PositiveInt = Field(300_000, description="most tokens of one request, over all inputs")
    max_input_chars: PositiveInt = Field(131_072, description="longest text that is tokenized, characters")
    token_ids: Literal["verify", "accept", "reject"] = Field(
        "verify", description="inputs of token ids: `verify` that they are this model's, `accept` or `reject` them all"
    )
    max_queued_inputs: PositiveInt = Field(16_384, description="inputs that may wait, over all requests to a model")
    max_queued_tokens: PositiveInt = Field(2_000_000, description="tokens that may wait, over all requests to a model")
    max_queue_s: Seconds = Field(5.0, description="longest expected wait for the engine; beyond it 429, seconds")

    tokenizer_threads: PositiveInt = Field(
        2, description="threads that tokenize long requests, for each model; one more is for short ones"
    )
    max_batch_tokens: PositiveInt = Field(16_384, description="most tokens of one engine call, padding included")
    max_batch_delay_ms: float = Field(
        5.0,
        ge=0,
        le=60_000,
        description="longest wait of a batch that is not full while the engine is busy, milliseconds",
    )
    slots_per_instance: PositiveInt = Field(1, description="engine calls under way for each engine instance")

    embedded_triton: bool = Field(False, description="start the Triton of the `embedded` extra on the model repository")
    embedded_grpc_port: int = Field(8001, ge=0, le=65535, description="its gRPC port; 0 picks a free one")
    embedded_http_port: int = Field(8000, ge=0, le=65535, description="its HTTP port; 0 picks a free one")
    embedded_metrics_port: int = Field(8002, ge=0, le=65535, description="its metrics port; 0 picks a free one")

    api_keys: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_keys)] = Field(
        (), description="keys that callers must send; with neither keys nor a file, anyone may call"
    )
    api_keys_file: Path | None = Field(
        None, description="file of further keys, one a line, read again when it changes; an empty file admits nobody"
    )
    max_body_bytes: PositiveInt = Field(32 * 1024 * 1024, description="longest request body, bytes")
    max_bodies_bytes: PositiveInt = Field(
        256 * 1024 * 1024, description="all request bodies under way together, bytes; what comes on top gets 429"
    )
    body_timeout_s: Seconds = Field(60.0, description="longest time a request body may take to arrive, seconds")
    send_timeout_s: Seconds = Field(
        60.0, description="longest time a caller may take to read the next 256 KiB of an answer, seconds"
    )
    cors_origins: Annotated[CommaSeparated, AfterValidator(_check_origins)] = Field(
        (), description="web origins whose pages may call; `*` for any, empty for none"
    )
    status_page: bool = Field(True, description="show people a page at `/`")

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        """Refuse a port that both the gateway and its Triton would open: Triton would answer on it."""
        for name in ("grpc", "http", "metrics"):
            if self.embedded_triton and self.port != 0 and self.port == getattr(self, f"embedded_{name}_port"):
                raise ValueError(f"GATEWAY_PORT and GATEWAY_EMBEDDED_{name.upper()}_PORT are both {self.port}")
        return self


def unknown_variables() -> list[str]:
    """Return the GATEWAY_* variables that are no setting: misspelt ones, or ones set by others."""
    prefix = Settings.model_config["env_prefix"]
    known = {f"{prefix}{name}".upper() for name in Settings.model_fields}
    return sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in known)


def tracing_is_on() -> bool:
    """Say whether OpenTelemetry's own variables ask for spans to be sent over OTLP.

    Raises:
        StartupError: they ask for it in a way that this gateway does not know.
    """

    def read(*names: str) -> str:
        return next((value for name in names if (value := os.environ.get(name, "").strip())), "")

    endpoint = read("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    is_disabled = read("OTEL_SDK_DISABLED").lower() == "true" or read("OTEL_TRACES_EXPORTER") == "none"
    if not endpoint or is_disabled:
        return False
    protocol = read("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") or _OTLP_PROTOCOL
    if protocol != _OTLP_PROTOCOL:
        raise StartupError(f"OTEL_EXPORTER_OTLP_PROTOCOL: only {_OTLP_PROTOCOL} is spoken, most often on port 4318")
    if not endpoint.startswith(("http://", "https://")):
        raise StartupError("OTEL_EXPORTER_OTLP_ENDPOINT: not a URL; one is http://collector:4318")
    return True


def describe_settings() -> str:
    """Return each variable with its default and what it is for, one a line."""
    prefix = Settings.model_config["env_prefix"]
    lines = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in ((), {}, None) else field.default
        lines += [f"  {prefix}{name.upper()}={default}", f"      {field.description}"]
    return "\n".join(lines)
