"""Result documents: what ranks leave in report/*.json is handed over once it is whole."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_BYTES = 4 * 2**20
MOST_RESULTS = 256
MOST_TOTAL_BYTES = 64 * 2**20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\.json")
Version = tuple[int, int, int]


class Results:
    """The report/ folder of one launch. Files are untrusted: no links, bounded size, JSON only."""

    def __init__(self, folder: Path, emit: Callable[[str, dict[str, Any]], None]) -> None:
        self._folder = folder
        self._emit = emit
        self._seen: dict[str, Version] = {}
        self._total_bytes = 0
        self.refused: list[str] = []
        """Names with the reason, for the launch's state."""

    def collect(self) -> None:
        """Hands over new files; a file that was replaced counts as new."""
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208
        except OSError:
            return
        for name in names:
            if _NAME.fullmatch(name):
                self._look_at(name)

    def _look_at(self, name: str) -> None:
        try:
            handle = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            self._refuse(name, (0, 0, 0), "it cannot be opened, or is a link")
            return
        try:
            self._judge(name, handle)
        finally:
            os.close(handle)

    def _judge(self, name: str, handle: int) -> None:
        status = os.fstat(handle)
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._seen.get(name) == version:
            return
        if not stat.S_ISREG(status.st_mode):
            self._refuse(name, version, "it is not a file")
        elif status.st_size > MOST_BYTES:
            self._refuse(name, version, f"{status.st_size} bytes, at most {MOST_BYTES}")
        elif name not in self._seen and len(self._seen) >= MOST_RESULTS:
            self._refuse(name, version, f"more than {MOST_RESULTS} results")
        else:
            with os.fdopen(os.dup(handle), "rb") as stream:
                self._take(name, version, stream.read(MOST_BYTES + 1))

    def _take(self, name: str, version: Version, content: bytes) -> None:
        try:
            document = json.loads(content, parse_constant=_no_number)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or len(content) > MOST_BYTES:
            self._refuse(name, version, "it is not a JSON object")
            return
        if self._total_bytes + len(content) > MOST_TOTAL_BYTES:
            self._refuse(name, version, f"more than {MOST_TOTAL_BYTES} bytes of results")
            return
        self._total_bytes += len(content)
        self._seen[name] = version
        self._emit(name.removesuffix(".json"), document)

    def _refuse(self, name: str, version: Version, reason: str) -> None:
        if self._seen.get(name) != version:
            self._seen[name] = version
            self.refused.append(f"report/{name}: {reason}")


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
