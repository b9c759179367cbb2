"""Runs pytest, then each test that failed once more, alone (ADR 0066).

A test that passes then is unsteady: the run passes, its name is among the last lines, and both
outputs are kept in `out/tests`. More than three tests that fail, or one that was unsteady in the
last ten runs (`tests/record.json`) already, fail the run.

usage: python -m harness.suite "make test" [--whole] [--row] [--folder DIR] -- PYTEST'S ARGUMENTS

`--whole` keeps what this run took in the record; `--row` writes its result into CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from harness.suite import results
from harness.suite.outcome import Outcome
from harness.suite.record import RECORD, ROOT, Record, Whole

MOST_FAILED = 3
"""More failures than this are no coincidence: none of them is run again."""
TESTS_FAILED = 1
SHOWN = 20_000
"""Characters of a test's second output that are printed, the last ones."""


def pytest(arguments: list[str], outcome: Path, output: Path | None = None) -> int:
    """Runs pytest with its outcome in a file; returns its exit status.

    With `output`, what it prints goes there instead.
    """
    outcome.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", "-p", "harness.suite.outcome", "--outcome", str(outcome),
        *arguments,
    ]  # fmt: skip
    with nullcontext() if output is None else output.open("w", encoding="utf-8") as stream:
        errors = None if stream is None else subprocess.STDOUT
        return subprocess.run(
            command, env=environment(), stdout=stream, stderr=errors, check=False
        ).returncode


def environment() -> dict[str, str]:
    """Returns the environment of a run of the tests.

    It keeps compiled sources even if the caller's does not: compiling them costs each process that
    a test starts a second, and each of pytest's workers ten.
    """
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class Runner:
    """One run of the tests and what follows from it."""

    def __init__(self, folder: Path, record: Path) -> None:
        self.folder, self.record_path = folder, record
        self.record = Record.read(record)
        self.lines: list[str] = []
        """What is said at the very end."""

    def run(self, arguments: list[str]) -> int:
        """Returns the exit status of the whole: 0, or pytest's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "outcome.json"
        code = pytest(arguments, path)
        self.outcome = Outcome.read(path) if path.exists() else Outcome()
        if code not in (0, TESTS_FAILED):
            return code
        failed = self.outcome.failed
        if code == TESTS_FAILED and not failed:
            self.lines.append("pytest failed, and no test did; see above")
            return code
        if len(failed) > MOST_FAILED:
            self.say(f"{len(failed)} tests failed", failed)
            return code
        return self.again(failed)

    def again(self, failed: dict[str, str]) -> int:
        """Runs each failed test alone; returns 0 if all passed then and none is unsteady again."""
        unsteady, broken = [], []
        for number, (name, told) in enumerate(sorted(failed.items()), 1):
            (self.folder / f"{number}-first.txt").write_text(f"{name}\n\n{told}\n", "utf-8")
            second = self.folder / f"{number}-alone.txt"
            code = pytest([name], self.folder / f"{number}-alone.json", second)
            (broken if code else unsteady).append(name)
            print(f"alone: {name} {'failed again' if code else 'passed'}", flush=True)
            if code:
                print(second.read_text("utf-8")[-SHOWN:], flush=True)
        twice = self.record.add_run(unsteady)
        self.say(f"unsteady (both outputs are in {self.folder})", unsteady)
        self.say("unsteady in the last ten runs already, which fails this one", twice)
        self.say("failed twice", broken)
        self.outcome.failed = {name: failed[name] for name in (*broken, *twice)}
        self.outcome.passed += len(unsteady) - len(twice)
        return TESTS_FAILED if broken or twice else 0

    def say(self, what: str, names: Iterable[str]) -> None:
        """Adds tests under a heading to the last lines, if there are any."""
        listed = [f"  {name}" for name in names]
        self.lines += [f"{what}:", *listed] if listed else []

    def keep(self, seconds: float) -> None:
        """Writes a whole run into the record."""
        self.record.whole = Whole(
            commit=results.commit_of(),
            date=str(datetime.datetime.now(datetime.UTC).date()),
            cores=os.cpu_count() or 1,
            seconds=round(seconds),
            passed=self.outcome.passed,
            failed=len(self.outcome.failed),
            skipped=self.outcome.skipped,
            modules=self.outcome.modules,
        )
        self.record.write(self.record_path)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.suite")
    parser.add_argument("name", help="what is run, such as 'make test'")
    parser.add_argument("--whole", action="store_true", help="keep what it took in the record")
    parser.add_argument("--row", action="store_true", help="write its row in CONTRIBUTING.md")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "tests")
    parser.add_argument("--record", type=Path, default=RECORD)
    at = arguments.index("--")
    asked = parser.parse_args(arguments[:at])
    runner = Runner(asked.folder, asked.record)
    started = time.monotonic()
    code = runner.run(arguments[at + 1 :])
    seconds = time.monotonic() - started
    passed, failed = runner.outcome.passed, len(runner.outcome.failed)
    if asked.whole and code in (0, TESTS_FAILED):
        runner.keep(seconds)
    if asked.row and code in (0, TESTS_FAILED):
        results.write(asked.name, passed, failed or code, seconds)
    print(
        f"{asked.name}: {passed} passed, {failed} failed, {runner.outcome.skipped} skipped "
        f"in {seconds / 60:.1f} minutes"
    )
    print(*runner.lines, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
