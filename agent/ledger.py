"""The ledger: a record of every launch that may have processes, kept until its end is spooled."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.datadir import write_durably
from agent.processes import Process

log = logging.getLogger(__name__)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Record:
    """A launch: its assignment, its token and its keeper (0, 0 before the keeper is started)."""

    assignment: str
    token: str
    host_boot: str
    pid: int = 0
    start: int = 0

    @property
    def keeper(self) -> Process | None:
        """The keeper's process, of this boot of the host; None when there can be none."""
        if not self.pid or self.host_boot != host_boot():
            return None
        return Process(self.pid, self.start)


def host_boot() -> str:
    """Returns the id of the host's boot: processes of an earlier one are gone."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def write_record(folder: Path, record: Record) -> None:
    """Writes the record. Raises `OSError` if that fails: then nothing may be started."""
    write_durably(folder / f"{record.assignment}.json", json.dumps(asdict(record)).encode())


def remove_record(folder: Path, assignment: str) -> None:
    """Removes the record of a launch that has ended and whose end is spooled."""
    (folder / f"{assignment}.json").unlink(missing_ok=True)


def read_records(folder: Path) -> list[Record]:
    """Returns the records that an earlier agent left; a broken one is logged and removed."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(Record(**json.loads(path.read_bytes())))
        except (ValueError, TypeError):
            log.error("a broken record is removed", extra={"record": path.name})
            path.unlink()
    return records
