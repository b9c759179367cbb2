"""The files of policies."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.policy import described, untrained
from shardwise.errors import BadInput
from shardwise.policy.weights import SCHEMA, packed, read_policy, write_policy


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    before, path = untrained(2), tmp_path / "w.npz"
    write_policy(before, str(path))
    after = read_policy(str(path))
    assert after.description == before.description and path.stat().st_size < 4e6
    for name, array in before.weights.items():
        np.testing.assert_allclose(after.weights[name], array, rtol=1e-3, atol=1e-6)


def halves() -> dict[str, Any]:
    return {name: array.astype(np.float16) for name, array in untrained().weights.items()}


BROKEN = [
    ("schema", described(schema="shardwise.policy/2"), {}, "unknown schema 'shardwise.policy/2'"),
    ("size", described(size="huge"), {}, "unknown size 'huge'"),
    ("size", {"schema": SCHEMA}, {}, "missing"),
    ("extra", described(), {"extra": np.zeros(1, np.float16)}, "unknown array"),
    ("group.w", described(), {"group.w": np.zeros((2, 2), np.float16)}, r"shape \(2, 2\)"),
    ("group.b", described(), {"group.b": np.zeros(64, np.float32)}, "of float32"),
    ("group.b", described(), {"group.b": np.full(64, np.nan, np.float16)}, "not all finite"),
    ("group.b", described(), {"group.b": None}, "missing"),
]


@pytest.mark.parametrize(("field", "description", "changes", "match"), BROKEN)
def test_broken_files_are_refused(
    tmp_path: Path, field: str, description: Any, changes: dict[str, Any], match: str
) -> None:
    path = tmp_path / "w.npz"
    arrays = {name: one for name, one in (halves() | changes).items() if one is not None}
    path.write_bytes(packed(arrays, description))
    with pytest.raises(BadInput, match=match) as refused:
        read_policy(str(path))
    assert refused.value.field == field and refused.value.file == str(path)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a file was unpickled",))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    out = io.BytesIO()
    np.savez(out, harmful=np.array([Harmful()], dtype=object))
    path.write_bytes(out.getvalue())
    with pytest.raises(BadInput, match=r"not an \.npz of numbers"):
        read_policy(str(path))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"no zip", b"\x93NUMPY"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "w.npz"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"not an \.npz of numbers"):
        read_policy(str(path))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_policy("/nowhere/w.npz")


def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path, small = tmp_path / "w.npz", tmp_path / "small.npz"
    with path.open("wb") as out:
        out.truncate(16 * 2**20 + 1)
    np.savez_compressed(small, zeros=np.zeros(32 * 2**20, np.uint8))
    assert small.stat().st_size < 2**20
    for one in (path, small):
        with pytest.raises(BadInput, match="at most 16777216 bytes"):
            read_policy(str(one))
