"""Chooses what `make test` runs of a test's cases; `make test-all` runs all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

WHOLE = os.environ.get("SHARDWISE_TESTS") == "all"
"""Whether this is `make test-all`, which sets the variable."""


def examples(few: int, whole: int) -> int:
    """Returns how many cases of a law to draw: `few` in `make test`, `whole` in `make test-all`.

    What hypothesis draws is counted by its profiles (tests/conftest.py).
    """
    assert 0 < few < whole, "a law needs cases, and `make test-all` more of them"
    return whole if WHOLE else few


def some(cases: Iterable[Any], runs: Callable[[Any], bool]) -> list[Any]:
    """Returns all cases as parameters; those for which `runs` is false are marked `full`.

    A tuple gives several parameters. Raises AssertionError if `make test` would run no case.
    """
    params, kept = [], 0
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        runs_here = runs(case)
        kept += runs_here
        params.append(pytest.param(*values, marks=() if runs_here else pytest.mark.full))
    assert kept, "`make test` would run none of these cases"
    return params
