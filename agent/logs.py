"""The agent's own log: one JSON object or one line for people each, on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says, as an object; `extra=` members come along."""
    document: dict[str, Any] = {
        "time": round(record.created, 3),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    for name, value in vars(record).items():
        if name not in _OWN and isinstance(value, str | int | float | bool | None):
            document[name] = value
    return document


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        document = fields_of(record)
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


class TextFormatter(logging.Formatter):
    """A record as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        document = fields_of(record)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock} {document.pop('level'):7} {document.pop('message')}"
        for name in ("time", "logger"):
            document.pop(name)
        line = " ".join([head, *(f"{key}={value}" for key, value in document.items())])
        # What a launch names must neither begin a line nor command a terminal.
        line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logs(level: str, form: str) -> None:
    """Send every logger's records to standard error in the form asked for."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
