"""The tasks of examples/tasks print what is beside them, in an empty folder with an empty home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.docs.fence_checks import shardwise_calls, unknown_option
from harness.tiers import some
from tools import tasks
from tools.tasks import FOLDER, difference, environment, run

ALWAYS = ("03-deepspeed.sh",)
"""Tasks that `make test` runs."""

NEEDS = {
    "01": ("transformers",),
    "04": ("transformers",),
    "08": ("matplotlib",),
    "09": ("torch",),
    "11": ("fastapi", "httpx", "celery"),
    "12": ("mcp",),
    "13": ("transformers",),
    "15": ("transformers",),
}
"""What a task needs beside the base install."""


def names() -> list[str]:
    return [path.name for path in tasks.tasks()]


@pytest.mark.parametrize("name", some(names(), lambda name: name in ALWAYS))
def test_a_task_ends_as_it_says(name: str) -> None:
    for package in NEEDS.get(name[:2], ()):
        pytest.importorskip(package)
    (task,) = tasks.tasks(name)
    printed, wrong = run(task)
    assert not wrong, f"{wrong}\n{printed}"


def test_each_task_says_what_it_needs_and_how_it_ends() -> None:
    assert len(names()) == 15
    for path in tasks.tasks():
        assert "Needs: " in path.read_text("utf-8"), path.name
        assert path.with_suffix(".expected").read_text("utf-8").strip("…\n "), path.name


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_commands_of_tasks_exist(path: Path) -> None:
    lines = path.read_text("utf-8").replace("\\\n", " ").splitlines()
    calls = [
        call for line in lines if line.startswith("shardwise ") for call in shardwise_calls(line)
    ]
    assert calls
    for words in calls:
        assert unknown_option(words) is None, words


@pytest.mark.parametrize(
    ("expected", "fits"),
    [
        ("b\nc 1.5 s\n", True),
        ("b\nc … s\n", True),
        ("c … s\n", True),
        ("b\nc 1.6 s\n", False),
        ("c 1.5\n", False),
        ("x\nb\nc 1.5 s\n", False),
        ("z\na\nb\nc 1.5 s\n", False),
        ("", False),
    ],
)
def test_a_wrong_line_is_found(expected: str, fits: bool) -> None:
    assert (difference("a\nb  \nc 1.5 s\n", expected) == "") is fits


def test_a_task_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FOLDER", tmp_path)
    monkeypatch.setenv("SHARDWISE_SERVER", "http://127.0.0.1:1")
    (tmp_path / "a.sh").write_text('set -eu\nls "$HOME" .\necho "${SHARDWISE_SERVER:-none}"\n')
    (tmp_path / "a.expected").write_text("none\n")
    (tmp_path / "b.sh").write_text("echo none\nexit 3\n")
    (tmp_path / "b.expected").write_text("none\n")
    assert run(tmp_path / "a.sh")[1] == ""
    assert "ended with 3" in run(tmp_path / "b.sh")[1]
    assert tasks.main(["a"]) == 0
    assert tasks.main([]) == 1
    with pytest.raises(ValueError, match="no task"):
        tasks.tasks("c")
    assert set(environment("h")) <= {"PATH", "HOME", "COLUMNS", "LANG", "PYTHONPATH"}
    assert os.environ["HOME"] != environment("h")["HOME"]
