import logging

import orjson
import pytest

from gateway.logs import JsonFormatter, TextFormatter, configure_logging


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
    monkeypatch: pytest.MonkeyPatch, log_format: str, is_terminal: bool, formatter: type[logging.Formatter]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    configure_logging("info", log_format)
    assert type(root.handlers[0].formatter) is formatter


def test_text_shows_the_fields() -> None:
    assert TextFormatter().format(record(fields={"status": 200})).endswith("INFO    did it status=200")
