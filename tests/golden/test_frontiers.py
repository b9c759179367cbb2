"""Golden frontiers of three small searches; a change here is reviewed, not waved through."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest


def _frontiers() -> ModuleType:
    file = Path(__file__).parent / "frontiers.py"
    spec = importlib.util.spec_from_file_location("golden_frontiers", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


frontiers = _frontiers()


@pytest.mark.parametrize("case", frontiers.CASES, ids=lambda c: "-".join(map(str, c)))
def test_the_frontier_is_as_it_was(case: tuple[str, str, int]) -> None:
    golden = json.loads(frontiers.path(case).read_text())
    now = frontiers.compute(case)
    for key in ("points", "turning_point", "exact"):
        assert now[key] == golden[key]
    for mine, theirs in zip(now["rows"], golden["rows"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
