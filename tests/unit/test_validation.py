"""Values of our types from many threads at once; nobody goes around `shardwise.validation`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardwise import validation

ROOT = Path(__file__).parents[2]

FIRST_USES = """
import sys
from threading import Barrier, Thread
import msgspec
from shardwise import validation

sys.setswitchinterval(1e-6)

def race(kind):
    barrier = Barrier(4)
    def use():
        barrier.wait()
        assert validation.convert({"a": {"n": 1}, "b": ["p"]}, kind).a.n == 1
        assert validation.decode(b'{"a": {"n": 2}}', kind).a.n == 2
    threads = [Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

for number in range(300):
    inner = msgspec.defstruct("Inner", [("n", int), ("more", dict[str, float], {})])
    fields = [("a", inner), ("b", list[str], []), ("c", float | None, None)]
    race(msgspec.defstruct("Outer", fields))
"""


def test_the_first_uses_of_a_class_may_come_at_once() -> None:
    """msgspec alone ends the process with a segmentation fault within a few classes."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USES], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_does_not_fit_is_refused_each_time() -> None:
    kind: type[Any] = msgspec.defstruct("Kind", [("n", int)])
    for _ in range(2):
        with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.n`"):
            validation.convert({"n": "1"}, kind)
        with pytest.raises(msgspec.DecodeError):
            validation.decode(b"{", kind)
    assert validation.convert({"n": "1"}, kind, strict=False).n == 1


def test_nobody_goes_around_it() -> None:
    around = re.compile(
        r"msgspec\.convert\(|Decoder\(|json\.decode\([^)]*type=(?!dict\[str, Any\])"
    )
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("shardwise", "service", "worker", "agent")
        for path in (ROOT / folder).rglob("*.py")
        if around.search(path.read_text())
    }
    assert found == {"shardwise/validation.py"}
