"""Chooses the parameters of a test that `make test` runs; `make test-all` runs all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


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
