"""The check of commit subjects: which commits it names, and where it cannot look."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import commit_subjects
from tools.commit_subjects import LONGEST, main, too_long


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of a long subject, which the check then runs in."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path, "o" * (LONGEST + 30))
    monkeypatch.setattr(commit_subjects, "ROOT", tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A Name", "-c", "user.email=name@example.com")
    command = ["git", *identity, "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, message: str) -> str:
    """Makes an empty commit and returns its id."""
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD").strip()


def test_long_subjects_after_the_start_are_named(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = git(repository, "rev-parse", "HEAD").strip()
    # Characters count, not bytes, and the body may be as long as it likes.
    commit(repository, "é" * LONGEST + "\n\n" + "b" * 200)
    assert too_long(repository, start) == [] and main([start]) == 0
    git(repository, "checkout", "--quiet", "-b", "side", start)
    commit(repository, "s" * (LONGEST + 1))
    git(repository, "checkout", "--quiet", "main")
    git(repository, "merge", "--quiet", "--no-ff", "--message", "Merge a side", "side")
    (line,) = too_long(repository, start) or [""]
    assert line.startswith(git(repository, "rev-parse", "--short", "side").strip())
    assert f"{LONGEST + 1} characters, expected at most {LONGEST}" in line
    assert main([start]) == 1
    assert line in capsys.readouterr().err


def test_a_history_without_the_start_is_said_not_to_be_checked(
    repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert too_long(repository, "0" * 40) is None and main([]) == 0
    assert "not checked" in capsys.readouterr().out
