"""Sets up logging once, from the settings: JSON lines for machines, or text for a terminal.

Loggers are named after their modules. A record's own fields go in `extra={"fields": {...}}`. User text is never logged.
"""

import logging
import logging.config
import sys
from datetime import UTC, datetime
from typing import Any

import orjson


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time (UTC), level, logger, message, the record's fields, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextFormatter(logging.Formatter):
    """Time, level and message, then the record's fields as key=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a traceback."""
        fields = "".join(f" {key}={value}" for key, value in getattr(record, "fields", {}).items())
        return super().formatMessage(record) + fields


def configure_logging(level: str, log_format: str) -> None:
    """Send all logs to standard error.

    Args:
        level: least severe level, lower case.
        log_format: `json`, `text`, or `auto`: text on a terminal, else json.
    """
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    formatter = TextFormatter if is_text else JsonFormatter
    config: dict[str, Any] = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{formatter.__module__}.{formatter.__qualname__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"level": level.upper(), "handlers": ["stderr"]},
        # Each request is one line of ours; uvicorn's would be a second.
        "loggers": {"uvicorn.access": {"level": "WARNING"}, "uvicorn.error": {"level": level.upper()}},
    }
    logging.config.dictConfig(config)
