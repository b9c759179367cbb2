"""A pytest plugin: writes what became of each test, and what its module took, as JSON.

`pytest -p harness.suite.outcome --outcome FILE`. Under pytest-xdist the process that collects the
reports of all workers writes the file; it is there after a run that was interrupted, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest


@dataclass
class Outcome:
    """What one run of pytest came to.

    `failed` maps tests' node ids to what pytest printed of them; `modules` maps modules to the
    seconds that their tests took, with their fixtures.
    """

    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    modules: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Outcome:
        return cls(**json.loads(path.read_text("utf-8")))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")


class Recorder:
    """Collects reports and writes them at the end of the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: dict[str, float] = defaultdict(float)
        self.failed: dict[str, str] = {}
        self.passed: set[str] = set()
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.modules[report.nodeid.split("::")[0]] += report.duration
        if report.failed:
            told = "\n".join(
                [str(report.longrepr), *(f"-- {a} --\n{b}" for a, b in report.sections)]
            )
            self.failed[report.nodeid] = told
        elif report.skipped:
            self.skipped.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        Outcome(
            passed=len(self.passed - self.failed.keys()),
            skipped=len(self.skipped),
            failed=self.failed,
            modules={path: round(self.modules[path], 2) for path in sorted(self.modules)},
        ).write(self.path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outcome", type=Path, metavar="FILE", help="write what became of each test as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("outcome")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), "shardwise-outcome")
