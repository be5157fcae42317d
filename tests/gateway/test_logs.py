import logging
import re

import orjson
import pytest

from gateway.logs import JsonFormatter, TextFormatter, configure_logging, parse_levels


def record(**extra: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "gateway.x", "levelname": "INFO", "msg": "did %s", "args": ("it",), **extra})


def test_json_is_one_object_a_line_with_the_records_fields() -> None:
    line = JsonFormatter().format(record(fields={"status": 200, "route": "/v1/embeddings"}))
    assert "\n" not in line
    parsed = orjson.loads(line)
    assert parsed.pop("time").endswith("+00:00")
    assert parsed == {
        "level": "info", "logger": "gateway.x", "message": "did it", "status": 200, "route": "/v1/embeddings",
    }  # fmt: skip


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_traceback_comes_along(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        line = formatter.format(record(exc_info=(type(error), error, error.__traceback__)))
    assert "ValueError: why" in line


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> list[logging.Handler]:
    """The root's handlers, to be configured; as it was afterwards."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    for name in ("gateway.x", "uvicorn", "opentelemetry"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    return root.handlers


@pytest.mark.parametrize(
    ("log_format", "is_terminal", "formatter"),
    [
        ("auto", True, TextFormatter),
        ("auto", False, JsonFormatter),
        ("json", True, JsonFormatter),
        ("text", False, TextFormatter),
    ],
)
def test_text_on_a_terminal_and_json_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    handlers: list[logging.Handler],
    log_format: str,
    is_terminal: bool,
    formatter: type[logging.Formatter],
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    configure_logging("info", log_format)
    assert type(handlers[0].formatter) is formatter


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("warning", {"": "warning"}),
        ("info,gateway.triton=debug", {"": "info", "gateway.triton": "debug"}),
        (" uvicorn = error , debug", {"": "debug", "uvicorn": "error"}),
        ("gateway.http.middleware=warning,", {"": "info", "gateway.http.middleware": "warning"}),
        ("", {"": "info"}),
    ],
)
def test_levels(text: str, levels: dict[str, str]) -> None:
    assert parse_levels(text) == levels


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("loud", "'loud' is no level; the levels are debug, info, warning, error"),
        ("info,gateway.triton", "'gateway.triton' is no level"),
        ("gateway.triton=", "'' is no level"),
        ("INFO", "'INFO' is no level"),
        ("=debug", "'' is no module's name"),
        ("info,gateway triton=debug", "'gateway triton' is no module's name"),
        ("info,debug", "two levels for all modules"),
        ("uvicorn=info,uvicorn=debug", "two levels for uvicorn"),
    ],
)
def test_levels_that_are_none(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_levels(text)


@pytest.mark.parametrize(
    ("levels", "seen"),
    [
        ("info", ["gateway.x info", "uvicorn.error info"]),
        ("warning,gateway.x=debug", ["gateway.x debug", "gateway.x info"]),
        ("debug,uvicorn=warning", ["gateway.x debug", "gateway.x info"]),
    ],
)
def test_a_module_may_have_a_level_of_its_own(
    handlers: list[logging.Handler], capsys: pytest.CaptureFixture[str], levels: str, seen: list[str]
) -> None:
    configure_logging(levels, "json")
    for name in ("gateway.x", "uvicorn.error"):
        logging.getLogger(name).debug("%s debug", name)
        logging.getLogger(name).info("%s info", name)
    assert [orjson.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == seen


def test_what_a_library_repeats_is_told_once(
    handlers: list[logging.Handler], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging("info", "json")
    now = 1000.0
    monkeypatch.setattr("gateway.logs.time.monotonic", lambda: now)
    for now in (1000.0, 1001.0, 1059.0, 1060.0):
        logging.getLogger("opentelemetry.exporter").warning("no collector at %d", now)
    seen = [orjson.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert seen == ["no collector at 1000", "no collector at 1060"]


def test_text_shows_the_fields() -> None:
    assert TextFormatter().format(record(fields={"status": 200})).endswith("INFO    did it status=200")
