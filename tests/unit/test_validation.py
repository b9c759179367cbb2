"""Values of our types from many threads at once; no module bypasses `shardwise.validation`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardwise import validation
from shardwise.validation import Misfit, NotJson

ROOT = Path(__file__).parents[2]


class Node(msgspec.Struct):
    below: Node | None = None


FIRST_USES = """
import sys
from threading import Barrier, Thread
import msgspec
from shardwise import validation
from shardwise.validation import Misfit, NotJson

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
        with pytest.raises(Misfit, match=r"^n: Expected 'int', got 'str'$"):
            validation.convert({"n": "1"}, kind)
        with pytest.raises(NotJson, match=r"^not JSON: "):
            validation.decode(b"{", kind)
    assert validation.convert({"n": "1"}, kind, strict=False).n == 1


@pytest.mark.parametrize(
    ("value", "field", "problem"),
    [
        ([], "form", "Expected 'object', got 'array'"),
        ({}, "form.a", "missing"),
        ({"a": {}}, "form.a.n", "missing"),
        ({"a": {"n": 1, "z": 2}}, "form.a.z", "unknown field"),
        ({"a": {"n": 1}, "many": [{"n": 1}, {"n": "x"}]}, "form.many[1].n", "Expected 'int'"),
        ({"a": {"n": 1}, "named": {"x": {}}}, "form.named[...].n", "missing"),
        ({"a": {"n": 1}, "named": {1: {"n": 1}}}, "form.named", "Expected 'str', got 'int'"),
    ],
)
def test_errors_name_the_field(value: Any, field: str, problem: str) -> None:
    inner: type[Any] = msgspec.defstruct("Inner", [("n", int)], forbid_unknown_fields=True)
    members = [("a", inner), ("many", list[inner], []), ("named", dict[str, inner], {})]  # type: ignore[valid-type]
    outer: type[Any] = msgspec.defstruct("Outer", members)
    with pytest.raises(Misfit) as caught:
        validation.convert(value, outer, "form", file="a.json", expected="a form")
    assert (caught.value.file, caught.value.field) == ("a.json", field)
    assert (caught.value.problem.startswith(problem), caught.value.expected) == (True, "a form")


def test_the_field_of_a_lists_element_follows_without_a_dot() -> None:
    with pytest.raises(Misfit, match=r"^rows\[1\]: Expected 'int', got 'str'$"):
        validation.convert([1, "x"], list[int], "rows")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "not JSON: "), (b"", "not JSON: "), (b'"\xff"', "not UTF-8 text: "),
        (b"[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_invalid_json_is_reported(data: bytes, problem: str) -> None:
    with pytest.raises(NotJson) as caught:
        validation.decode_any(data, file="a.json", expected="a form")
    assert caught.value.problem.startswith(problem)
    assert (caught.value.file, caught.value.expected) == ("a.json", "a form")


def test_values_nested_too_deeply_are_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(100_000):
        nested = {"below": nested}
    with pytest.raises(Misfit, match="nested too deeply"):
        validation.convert(nested, Node)


def test_no_module_bypasses_it() -> None:
    around = re.compile(
        r"msgspec\.(convert\(|ValidationError)|Decoder\("
        r"|json\.decode\([^)]*type=(?!dict\[str, Any\])"
    )
    files = {
        path.relative_to(ROOT).as_posix()
        for folder in ("shardwise", "service", "worker", "agent")
        for path in (ROOT / folder).rglob("*.py")
        if around.search(path.read_text())
    }
    assert files == {"shardwise/validation.py"}
