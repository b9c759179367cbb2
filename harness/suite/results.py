"""The last result of each long target, as rows of a table in CONTRIBUTING.md.

`python -m harness.suite.results "make accuracy-check" -- COMMAND` runs a command and writes its
row; `harness.suite` writes those of pytest. What was not run again keeps its old row, so that
everybody sees how old it is.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import time

from harness.suite.record import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- last results -->", "<!-- end of last results -->"
HEAD = "| target | commit | date | passed | failed | minutes |\n|---|---|---|---|---|---|\n"


def commit_of() -> str:
    """Returns the short name of HEAD, with `+` if files differ from it; `unknown` without git."""
    named = git("rev-parse", "--short=8", "HEAD")
    return (named + ("+" if git("status", "--porcelain", "-uno") else "")) or "unknown"


def git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def row(target: str, passed: int, failed: int, seconds: float) -> str:
    today = datetime.datetime.now(datetime.UTC).date()
    minutes = max(1, round(seconds / 60))
    return f"| `{target}` | {commit_of()} | {today} | {passed} | {failed} | {minutes} |"


def with_row(text: str, target: str, line: str) -> str:
    """Returns the page with the target's row replaced, or added in the order of names."""
    before, begin, rest = text.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has no {BEGIN} and {END}")
    rows = [kept for kept in table.splitlines() if kept.startswith("| `")]
    others = [kept for kept in rows if not kept.startswith(f"| `{target}` ")]
    return f"{before}{BEGIN}\n{HEAD}" + "\n".join(sorted([*others, line])) + f"\n{END}{after}"


def write(target: str, passed: int, failed: int, seconds: float) -> None:
    """Writes a target's row into the page."""
    text = PAGE.read_text("utf-8")
    PAGE.write_text(with_row(text, target, row(target, passed, failed, seconds)), "utf-8")


def main(arguments: list[str]) -> int:
    target, dashes, *command = arguments
    if dashes != "--" or not command:
        print('usage: python -m harness.suite.results "make TARGET" -- COMMAND', file=sys.stderr)
        return 2
    started = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    write(target, int(code == 0), int(code != 0), time.monotonic() - started)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
