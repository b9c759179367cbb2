"""The spool: reports are files until the service has acknowledged them.

A report that cannot be written (full disk) is kept in memory: states and results until they can be
shipped, log lines not at all. Over its limit the spool drops the oldest log reports, never a state
or a result; the next report of that stream says how many lines were lost (`dropped`).
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.datadir import FULL, write_durably

log = logging.getLogger(__name__)
Report = dict[str, Any]
Stream = tuple[str, int, str]
"""Of one assignment, one rank, stdout or stderr."""

COUNT_BYTES = 20
"""How much a report may grow when the count of dropped lines is written into it."""

_FILE = re.compile(r"(\d{12,})-(state|log|result)-([0-9a-f-]{36})\.json")
ENDED = frozenset({"done", "failed", "stopped", "lost"})
"""States of an assignment after which there is no other."""


@dataclass(frozen=True)
class Entry:
    """A report that waits: its place in the order, on disk or (`content`) in memory."""

    number: int
    id: str
    kind: str
    size: int
    content: bytes | None = None


class Spool:
    """The reports that wait, oldest first. For any number of threads."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self.arrived = threading.Event()
        self._entries: dict[str, Entry] = {}
        self._size = 0
        self._number = 0
        self._dropped: Counter[Stream] = Counter()
        self._ended: dict[str, tuple[str, str, str]] = {}
        self.trouble = ""
        """Why reports cannot be kept on disk; empty when they can."""
        self._load()

    def _load(self) -> None:
        for path in sorted(self._folder.glob("*.json")):
            match = _FILE.fullmatch(path.name)
            if match is None:
                continue
            number, kind, report_id = match.groups()
            self._number = max(self._number, int(number))
            content = path.read_bytes()
            try:
                report = json.loads(content)
            except ValueError:
                log.error("a broken report is set aside", extra={"report": path.name})
                path.rename(path.with_suffix(".broken"))
                continue
            self._add(Entry(int(number), report_id, kind, len(content)), report)

    def _add(self, entry: Entry, report: Report) -> None:
        self._entries[entry.id] = entry
        self._size += entry.size
        if entry.kind == "state" and report["state"] in ENDED:
            self._ended[entry.id] = (report["assignment"], report["token"], report["state"])
        self.arrived.set()

    def put(self, kind: str, assignment: str, token: str, **fields: Any) -> str:
        """Adds a report and returns its id. Never raises for a full disk."""
        report: Report = {
            "schema": "shardwise.report/1",
            "id": str(uuid.uuid4()),
            "assignment": assignment,
            "token": token,
            "at_s": round(time.time(), 3),
            "kind": kind,
            **fields,
        }
        with self._lock:
            self._make_room(len(json.dumps(report)) + COUNT_BYTES)
            stream = _stream_of(report)
            if stream is not None:
                report["dropped"] += self._dropped.pop(stream, 0)
            content = json.dumps(report).encode()
            self._number += 1
            entry = Entry(self._number, report["id"], kind, len(content))
            if self._write(entry, content):
                self._add(entry, report)
            elif stream is not None:
                self._dropped[stream] += report["dropped"] + len(report["lines"])
            else:
                self._add(Entry(entry.number, entry.id, kind, entry.size, content), report)
        return str(report["id"])

    def _write(self, entry: Entry, content: bytes) -> bool:
        """Writes the file; on a full disk log reports make room for states and results."""
        while True:
            try:
                write_durably(self._path(entry), content)
            except OSError as error:
                full = error.errno in FULL
                if full and entry.kind != "log" and self._drop_oldest_log():
                    continue
                self._complain(error)
                return False
            self._recovered()
            return True

    def _complain(self, error: OSError) -> None:
        reason = f"reports cannot be written: {(error.strerror or str(error)).lower()}"
        if reason != self.trouble:
            log.error(reason)
        self.trouble = reason

    def _recovered(self) -> None:
        if self.trouble:
            log.info("reports can be written again")
        self.trouble = ""

    def _make_room(self, size: int) -> None:
        while self._size + size > self._limit_bytes and self._drop_oldest_log():
            pass

    def _drop_oldest_log(self) -> bool:
        for entry in self._entries.values():
            if entry.kind == "log":
                report = json.loads(self._content(entry))
                stream = _stream_of(report)
                if stream is not None:
                    self._dropped[stream] += report["dropped"] + len(report["lines"])
                self._forget(entry)
                return True
        return False

    def probe(self) -> None:
        """While there is trouble: tries again, and writes what is in memory."""
        with self._lock:
            if not self.trouble:
                return
            in_memory = [(one, one.content) for one in self._entries.values()]
            for entry, content in in_memory:
                if content is None:
                    continue
                if not self._write(entry, content):
                    return
                self._entries[entry.id] = Entry(entry.number, entry.id, entry.kind, entry.size)
            test = self._folder / "probe"
            try:
                write_durably(test, bytes(2**16))
            except OSError as error:
                self._complain(error)
                return
            test.unlink()
            self._recovered()

    def batch(self, most: int, most_bytes: int) -> list[Report]:
        """Returns the oldest reports, within both bounds but at least one.

        Empty when none waits.
        """
        with self._lock:
            chosen: list[Report] = []
            total = 0
            for entry in list(self._entries.values()):
                if chosen and (len(chosen) >= most or total + entry.size > most_bytes):
                    break
                try:
                    chosen.append(json.loads(self._content(entry)))
                except (OSError, ValueError) as error:
                    log.error("a spooled report cannot be read any more: %s", error)
                    self._forget(entry)
                    continue
                total += entry.size
            if not self._entries:
                self.arrived.clear()
            return chosen

    def forget(self, ids: list[str]) -> None:
        """Drops reports that the service has acknowledged; unknown ids are ignored."""
        with self._lock:
            for report_id in ids:
                if entry := self._entries.get(report_id):
                    self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if entry.content is None:
            self._path(entry).unlink(missing_ok=True)
        del self._entries[entry.id]
        self._ended.pop(entry.id, None)
        self._size -= entry.size

    def dropped_lines(self, assignment: str) -> dict[Stream, int]:
        """Returns lines of the assignment that were dropped since its streams' last reports."""
        with self._lock:
            return {key: n for key, n in self._dropped.items() if key[0] == assignment}

    def ended(self) -> list[tuple[str, str, str]]:
        """Returns (assignment, token, state) of ends that the service has not acknowledged yet.

        Without the lock, which is held while a report is written: a slow disk costs no heartbeat.
        """
        return list(self._ended.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Size of the waiting reports."""
        return self._size

    def _content(self, entry: Entry) -> bytes:
        return self._path(entry).read_bytes() if entry.content is None else entry.content

    def _path(self, entry: Entry) -> Path:
        return self._folder / f"{entry.number:012}-{entry.kind}-{entry.id}.json"


def _stream_of(report: Report) -> Stream | None:
    if report["kind"] != "log":
        return None
    return report["assignment"], report["rank"], report["stream"]
