"""Answers that are kept for tests of what carries and shows them are those of the library."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi", reason="needs shardwise[service]")

from harness.stored import FOLDER, STORED, computed, path, stored, timeless

PROVEN = ("gap", "bound", "certificate", "proven", "epsilon")
"""Parts of names of what was proven, which rounding on another processor may change a little."""
TIES = ("plan_id", "differs")
"""Members of a frontier's points that tell plans of equal costs apart: among plans whose layers are
equal, rounding on another processor may choose another one."""


def close(found: Any, kept: Any, where: str) -> None:
    """Fails unless two documents are alike, numbers up to rounding."""
    if isinstance(kept, dict):
        assert found.keys() == kept.keys(), where
        for name, one in kept.items():
            close(found[name], one, f"{where}.{name}")
    elif isinstance(kept, list):
        assert len(found) == len(kept), where
        for number, one in enumerate(kept):
            close(found[number], one, f"{where}[{number}]")
    elif isinstance(kept, float):
        proven = any(part in where for part in PROVEN)
        assert found == pytest.approx(kept, rel=1e-2 if proven else 1e-9, abs=1e-3 * proven), where
    elif isinstance(kept, str) and ".points[" in where and where.endswith(TIES):
        assert type(found) is str and bool(found) == bool(kept), where
    else:
        assert found == kept, where


@pytest.mark.parametrize("name", STORED)
def test_the_answer_is_as_it_was(name: str) -> None:
    kept = msgspec.json.decode(path(name).read_bytes())
    close(timeless(computed(name)), timeless(kept), name)
    assert stored(name)


def test_every_file_is_small_and_of_an_answer() -> None:
    files = sorted(FOLDER.glob("*.json"))
    assert {file.stem for file in files} == STORED.keys()
    assert max(file.stat().st_size for file in files) < 150_000
