"""Refuses commits whose subject is too long to be read in a list.

    python -m tools.commit_subjects [SINCE]   # exits with 1 and names them

A subject is imperative and has at most 72 characters; the body has the reason. Commits up to
`START`, which came before this rule, are left out.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
START = "f74ff005487358b71fd92638326db956892401dc"
"""The last commit before the rule."""

LONGEST = 72
"""Characters of a subject."""


def too_long(repository: Path, since: str) -> list[str] | None:
    """Returns a line for each commit after `since` with too long a subject, the newest first.

    None where `since` is not in the history: a shallow clone, an archive, another repository.
    """
    done = _git(repository, "merge-base", "--is-ancestor", since, "HEAD")
    if done.returncode != 0:
        return None
    log = _git(repository, "log", "--format=%h %s", "HEAD", f"^{since}")
    log.check_returncode()
    commits = [line.partition(" ") for line in log.stdout.split("\n")]
    return [
        f"{commit}: {len(subject)} characters, expected at most {LONGEST}: {subject}"
        for commit, _, subject in commits
        if len(subject) > LONGEST
    ]


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments],
        cwd=repository,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def main(arguments: list[str]) -> int:
    """Checks the commits of this repository; returns the exit status."""
    since = arguments[0] if arguments else START
    wrong = too_long(ROOT, since)
    if wrong is None:
        print(f"commit subjects are not checked: no commit {since} in HEAD's history here")
        return 0
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print("reword them: git commit --amend, or git rebase --interactive", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
