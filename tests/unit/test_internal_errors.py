"""A defect of Shardwise itself: one line, exit code 70, and where it was only when asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shardwise.errors import InternalError, ShardwiseError, defect_text

BROKEN = """
from shardwise.cli import main
from shardwise.errors import InternalError

def broken(**_):
    raise {error}

main.cli.main = broken
main.main()
"""


def broken(error: str, debug: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with a defect in it."""
    return subprocess.run(
        [sys.executable, "-c", BROKEN.format(error=error)],
        capture_output=True,
        text=True,
        env={**os.environ, "SHARDWISE_DEBUG": debug},
        timeout=60,
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("InternalError('no strategy\\n is known')", "no strategy is known"),
        ("KeyError('pool')", "KeyError: 'pool'"),
    ],
)
def test_a_defect_ends_a_command_with_70_and_one_line(error: str, text: str) -> None:
    done = broken(error, debug="0")
    assert done.returncode == 70
    assert not done.stdout
    said = f"shardwise: internal error: {text}; please report it (SHARDWISE_DEBUG=1 shows where)\n"
    assert done.stderr == said


def test_a_defect_says_where_it_is_when_that_is_asked_for() -> None:
    done = broken("InternalError('no strategy is known')", debug="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "InternalError: no strategy is known" in done.stderr


def test_a_defect_is_none_of_the_errors_for_users() -> None:
    """What handles those answers with exit code 2, or with 422: as if the input were wrong."""
    assert not issubclass(InternalError, ShardwiseError)
    assert defect_text(InternalError("a\n  b")) == "internal error: a b; please report it"
