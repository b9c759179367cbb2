"""Structured logs on standard error: one JSON object a line, with the request that it is about."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

from service.redact import redacted

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The request that is being served, or that a job was asked by."""

JOB_ID: ContextVar[str] = ContextVar("job_id", default="")

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data"}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says, as an object; `extra=` members come along."""
    document: dict[str, Any] = {
        "time": round(record.created, 3),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    for name, variable in (("request_id", REQUEST_ID), ("job_id", JOB_ID)):
        if value := variable.get():
            document[name] = value
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
        # In ASCII: paths come from outside, and some readers end a line at U+0085 or U+2028.
        return redacted(json.dumps(document))


class TextFormatter(logging.Formatter):
    """A record as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        document = fields_of(record)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock} {document.pop('level'):7} {document.pop('message')}"
        for name in ("time", "logger"):
            document.pop(name)
        line = " ".join([head, *(f"{key}={value}" for key, value in document.items())])
        # What a path holds must neither begin a line nor command a terminal.
        line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return redacted(line)


def set_up_logs(level: str, form: str) -> None:
    """Send every logger's records to standard error in the form asked for."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # SQLAlchemy would write every row that it reads at debug level: hashes, leases, graphs.
    for noisy in ("alembic", "amqp", "celery.app.trace", "celery.worker.strategy", "kombu",
                  "sqlalchemy"):  # fmt: skip
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
