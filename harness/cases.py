"""One test of many cases, which says for each that fails what is wrong.

A parameter of its own costs pytest more than a cheap case takes; a plain loop ends at the first
case that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Case = TypeVar("Case")
MOST = 20
"""How many cases are named; the others are counted."""


def every(
    cases: Iterable[Case], holds: Callable[[Case], None], name: Callable[[Case], str] = str
) -> None:
    """Calls `holds` with every case; raises AssertionError with those for which it raised.

    The first of their errors is the cause, so that pytest shows where it was raised.
    """
    wrong: list[tuple[str, Exception]] = []
    count = 0
    for case in cases:
        count += 1
        try:
            holds(case)
        except Exception as error:
            wrong.append((name(case), error))
    assert count, "there is no case"
    if wrong:
        lines = [f"{of}: {type(error).__name__}: {error}" for of, error in wrong[:MOST]]
        shown = "\n".join(line if len(line) < 1000 else f"{line[:1000]}…" for line in lines)
        raise AssertionError(f"{len(wrong)} of {count} cases:\n{shown}") from wrong[0][1]
