"""Every refusal says what was given and what was expected."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("shardwise", "service", "worker", "agent")


def refusals() -> Iterator[tuple[str, ast.Call]]:
    """Returns every `BadInput(…)` of the product with its place."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id == "BadInput"
                ):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_every_refusal_says_what_was_expected() -> None:
    found = list(refusals())
    assert len(found) > 800
    without = [
        place
        for place, call in found
        if not {"expected", None} & {keyword.arg for keyword in call.keywords}
    ]
    assert without == []


def test_no_problem_repeats_what_was_expected() -> None:
    """`expected` has a parameter of its own, which every surface shows in its place."""
    repeated = [
        place
        for place, call in refusals()
        if call.args
        and any(
            isinstance(part, ast.Constant) and str(part.value).startswith(("expected ", "must be "))
            for part in ast.walk(call.args[0])
        )
    ]
    assert repeated == []


def test_no_problem_is_only_a_value() -> None:
    """`gpus: 0` does not say that 0 was given; `gpus: got 0` does."""
    bare = [
        place
        for place, call in refusals()
        if call.args
        and isinstance(call.args[0], ast.JoinedStr)
        and len(call.args[0].values) == 1
        and isinstance(call.args[0].values[0], ast.FormattedValue)
    ]
    assert bare == []
