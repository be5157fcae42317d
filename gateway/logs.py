"""Sets up logging once, from the settings: JSON lines for machines, or text for a terminal.

Loggers are named after their modules. A record's own fields go in `extra={"fields": {...}}`. User text is never logged.
"""

import logging
import logging.config
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any

import orjson

_LEVELS = ("debug", "info", "warning", "error")
_LOGGER = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_SPARSE_S = 60.0


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


class SparseHandler(logging.Handler):
    """Hands at most one record a minute on to the root's handlers: for what repeats itself for as long as it lasts."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Hand it on, or drop it."""
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _SPARSE_S
            logging.getLogger().handle(record)


def parse_levels(text: str) -> dict[str, str]:
    """Return the least severe level of each logger that the text names; of all others under the empty name.

    Args:
        text: `info`, or `info,gateway.http=debug,uvicorn=warning`; without a level for all others it is info.

    Raises:
        ValueError: it is something else; the message says which part.
    """
    levels: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, has_name, level = map(str.strip, part.rpartition("="))
        if level not in _LEVELS:
            raise ValueError(f"{level!r} is no level; the levels are {', '.join(_LEVELS)}")
        if has_name and not _LOGGER.fullmatch(name):
            raise ValueError(f"{name!r} is no module's name, as gateway.scheduler is")
        if name in levels:
            raise ValueError(f"two levels for {name or 'all modules'}")
        levels[name] = level
    return {"": "info"} | levels


def configure_logging(levels: str, log_format: str) -> None:
    """Send all logs to standard error.

    Args:
        levels: least severe levels, see `parse_levels`.
        log_format: `json`, `text`, or `auto`: text on a terminal, else json.
    """
    of_loggers = parse_levels(levels)
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    formatter = TextFormatter if is_text else JsonFormatter
    config: dict[str, Any] = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{formatter.__module__}.{formatter.__qualname__}"}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "line"},
            "sparse": {"()": f"{__name__}.{SparseHandler.__qualname__}"},
        },
        "root": {"level": of_loggers.pop("").upper(), "handlers": ["stderr"]},
        "loggers": {
            # Each request is one line of ours; uvicorn's would be a second.
            "uvicorn.access": {"level": "WARNING"},
            # A collector that is away is told of with each attempt to reach it.
            "opentelemetry": {"handlers": ["sparse"], "propagate": False},
        },
    }
    for name, level in of_loggers.items():
        config["loggers"].setdefault(name, {})["level"] = level.upper()
    logging.config.dictConfig(config)
