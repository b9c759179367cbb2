"""Sweeps that the keeper of this process runs, and their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.execute import sweep
from harness.execute.keeper import keeper

ROOT = Path(__file__).parents[2]


def swept(*arguments: str) -> list[dict[str, Any]]:
    """Returns the results of `sweep.py` with these arguments. Raises `AssertionError` if it fails.

    It takes seconds to begin, for the families that no sweep of this process had before.
    """
    return list(keeper().run(sweep.listed, *arguments))
