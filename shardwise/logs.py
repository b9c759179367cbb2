"""Structured logs on standard error: one JSON object a line, or one line of text for people."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data"}
"""Attributes that no `extra=` of ours has set; `data` is Celery's."""

Context = Callable[[], Mapping[str, str]]
"""Returns what each record carries besides its own, such as the request that is being served."""

Mask = Callable[[str], str]
"""Returns a line without what must not be logged, such as secrets."""


class _Formatter(logging.Formatter):
    def __init__(self, context: Context = dict, mask: Mask = str) -> None:
        super().__init__()
        self._context = context
        self._mask = mask

    def _members(self, record: logging.LogRecord) -> dict[str, Any]:
        """Returns what a record says, as an object, with the members of `extra=`."""
        members: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._context(),
        }
        for name, value in vars(record).items():
            if name not in _OWN and isinstance(value, str | int | float | bool | None):
                members[name] = value
        return members


class JsonFormatter(_Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        members = self._members(record)
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        # In ASCII: texts come from outside, and some readers end a line at U+0085 or U+2028.
        return self._mask(json.dumps(members))


class TextFormatter(_Formatter):
    """Formats a record as a line for people, the traceback of an exception below it."""

    def format(self, record: logging.LogRecord) -> str:
        members = self._members(record)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock} {members.pop('level'):7} {members.pop('message')}"
        for name in ("time", "logger"):
            members.pop(name)
        line = " ".join([head, *(f"{key}={value}" for key, value in members.items())])
        # Text from outside must neither begin a line nor command a terminal.
        line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return self._mask(line)


def set_up_logs(
    level: str, form: str, *, quiet: Iterable[str] = (), context: Context = dict, mask: Mask = str
) -> None:
    """Sends every logger's records to standard error.

    `form` is `json`, `text`, or `auto`, which is text on a terminal and else JSON. Loggers named in
    `quiet` say warnings and errors only.
    """
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((TextFormatter if as_text else JsonFormatter)(context, mask))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in quiet:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
