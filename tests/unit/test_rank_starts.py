"""How long ranks that are started here may take: to join, and from then on to measure."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from shardwise.measure import local
from shardwise.measure.rank import SLACK_S
from shardwise.measure.world import JOIN_S

LIMIT_S = 5.0
NEVER = float("inf")
STEP_S = 1.0


@dataclass
class Course:
    """A clock that goes on while the starter waits; when, by it, ranks join and end."""

    joined_s: float
    ended_s: float
    now_s: float = 0.0


def run(monkeypatch: pytest.MonkeyPatch, course: Course) -> tuple[bytes, list[str]]:
    """What the starter returns of two ranks of this course, and what it has heard."""

    class Rank:
        def __init__(self, command: list[str], stdout: IO[bytes], **rest: Any) -> None:
            self._said = Path(stdout.name)
            self._profile = Path(command[command.index("-o") + 1])
            self._ended = False

        def poll(self) -> int | None:
            if course.now_s >= course.joined_s:
                self._said.write_text("0.0\tthe device\n")
            if course.now_s >= course.ended_s:
                self._profile.write_bytes(b"profile")
                self._ended = True
            return 0 if self._ended else None

        def wait(self, timeout_s: float = 0.0) -> int:
            if not self._ended:
                course.now_s += STEP_S
                raise subprocess.TimeoutExpired("rank", timeout_s)
            return 0

        def terminate(self) -> None:
            self._ended = True

    monkeypatch.setattr("shardwise.measure.local.subprocess.Popen", Rank)
    monkeypatch.setattr(local, "monotonic", lambda: course.now_s)
    heard: list[str] = []
    return local.run_ranks(2, [], LIMIT_S, heard.append), heard


@pytest.mark.parametrize("joined_s", [1.0, JOIN_S - 10])
def test_the_time_limit_counts_from_when_ranks_have_joined(
    monkeypatch: pytest.MonkeyPatch, joined_s: float
) -> None:
    course = Course(joined_s, joined_s + LIMIT_S + SLACK_S - 10)
    assert run(monkeypatch, course) == (b"profile", ["0.0\tthe device"])


def test_ranks_that_never_join_are_distinguished_from_those_that_never_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = Course(NEVER, NEVER)
    with pytest.raises(TimeoutError, match="did not start and find each other within 600 s"):
        run(monkeypatch, course)
    assert course.now_s == pytest.approx(JOIN_S, abs=3 * STEP_S)
    course = Course(100.0, NEVER)
    with pytest.raises(TimeoutError, match="did not end within 5 s and 300 s"):
        run(monkeypatch, course)
    assert course.now_s == pytest.approx(100 + LIMIT_S + SLACK_S, abs=3 * STEP_S)
