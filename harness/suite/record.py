"""The record of runs, `tests/record.json`: what the last whole run took, and who was unsteady.

`whole` is the last whole `make test`: commit, date, cores, wall-clock seconds, counts, and the
seconds of each module, which `tests/unit/test_suite.py` holds against its budget
(`tests/budgets.py`). `unsteady` lists, for each of the last ten runs, the tests that failed and
passed when they ran once more alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "record.json"
RUNS = 10
"""Number of runs in which a test may be unsteady once."""


@dataclass
class Whole:
    """One whole run."""

    commit: str
    date: str
    cores: int
    seconds: int
    passed: int
    failed: int
    skipped: int
    modules: dict[str, float]


@dataclass
class Record:
    """What is kept of runs."""

    whole: Whole | None = None
    unsteady: list[list[str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path = RECORD) -> Record:
        if not path.exists():
            return cls()
        held = json.loads(path.read_text("utf-8"))
        whole = held["whole"]
        return cls(Whole(**whole) if whole else None, held["unsteady"])

    def write(self, path: Path = RECORD) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    def add_run(self, unsteady: list[str]) -> list[str]:
        """Adds a run's unsteady tests; returns those that were unsteady in the last ten already."""
        before = {name for run in self.unsteady[-(RUNS - 1) :] for name in run}
        self.unsteady = [*self.unsteady, sorted(unsteady)][-RUNS:]
        return sorted(before & set(unsteady))
