"""Runs the tasks of examples/tasks as their reader would, and compares their last lines.

`python -m tools.tasks [NAME…]` runs each script in an empty folder, with an empty home and an
environment that has PATH, HOME, the terminal's width and PYTHONPATH alone, and prints a line for
each. `NAME.expected` has the last lines of its output. There `…` stands for any text within a line:
times that a machine measures, addresses, what a search finds within a limit on its time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "examples" / "tasks"
PATIENCE_S = 500.0


def tasks(*names: str) -> list[Path]:
    """Returns the scripts, or those whose names contain one of `names`, in order.

    Raises ValueError for a name that no script has.
    """
    every = sorted(path for path in FOLDER.iterdir() if path.suffix in (".sh", ".py"))
    for name in names:
        if not any(name in path.name for path in every):
            raise ValueError(f"no task {name!r} in {FOLDER.name}")
    return [path for path in every if not names or any(name in path.name for name in names)]


def run(task: Path) -> tuple[str, str]:
    """Returns what a task printed, and what is wrong with it: empty if nothing is."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable if task.suffix == ".py" else "/bin/sh", str(task)]
        process = subprocess.Popen(
            command, cwd=folder, env=environment(home), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            printed, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, errors = process.communicate()
            return printed, f"not over after {PATIENCE_S:.0f} s\n{errors[-2000:]}"
    if process.returncode:
        return printed, f"ended with {process.returncode}\n{printed[-1000:]}{errors[-2000:]}"
    return printed, difference(printed, task.with_suffix(".expected").read_text("utf-8"))


def environment(home: str) -> dict[str, str]:
    """Returns the variables of a task: this Python's programs come first on its PATH."""
    programs = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    fixed = {"PATH": programs, "HOME": home, "COLUMNS": "100", "LANG": "C.UTF-8"}
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return {**fixed, **kept}


def difference(printed: str, expected: str) -> str:
    """Returns the first line in which the end of what was printed is not as expected, or ''."""
    wanted = expected.splitlines()
    got = printed.splitlines()[-len(wanted) :] if wanted else []
    if not wanted:
        return "no lines are expected"
    if len(got) < len(wanted):
        return f"expected {len(wanted)} lines, got {len(got)}:\n{printed}"
    for want, line in zip(wanted, got, strict=True):
        pattern = ".*".join(re.escape(part) for part in want.rstrip().split("…"))
        if not re.fullmatch(pattern, line.rstrip()):
            return f"expected  {want}\ngot       {line}"
    return ""


def main(names: list[str]) -> int:
    """Runs the tasks and prints a line for each; returns 1 if one is not as expected."""
    failed = 0
    for task in tasks(*names):
        began = time.monotonic()
        _, wrong = run(task)
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'passed'}  {time.monotonic() - began:5.0f} s  {task.name}")
        if wrong:
            print(wrong)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
