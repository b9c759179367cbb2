"""The spool: order, survival, bounds, a disk that fails."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

import agent.spool
from agent.spool import Spool

MIB = 2**20


def put_log(spool: Spool, text: str = "x", lines: int = 1, first: int = 0) -> str:
    return spool.put(
        "log", "a1", "t", rank=0, stream="stdout", first_line=first, lines=[text] * lines, dropped=0
    )


def test_reports_come_back_in_order_and_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    ids = [
        spool.put("state", "a1", "t", state="running"),
        put_log(spool),
        spool.put("result", "a1", "t", name="m", document={"x": 1}),
        spool.put("state", "a1", "t", state="done"),
    ]
    assert [report["id"] for report in spool.batch(10, MIB)] == ids
    again = Spool(tmp_path, MIB)
    reports = again.batch(10, MIB)
    assert [report["id"] for report in reports] == ids
    assert again.ended() == [("a1", "t", "done")]
    again.forget(ids[:3])
    assert [report["id"] for report in again.batch(10, MIB)] == ids[3:]
    assert len(list(tmp_path.iterdir())) == 1
    again.forget(ids)
    assert not again.ended()
    assert not list(tmp_path.iterdir())
    # Numbers go on: what comes after a restart is younger.
    later = put_log(again)
    assert [report["id"] for report in Spool(tmp_path, MIB).batch(9, MIB)] == [later]


def test_a_batch_is_bounded_but_never_empty(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 100 * MIB)
    for _ in range(5):
        put_log(spool, "y" * 1000)
    assert len(spool.batch(3, MIB)) == 3
    assert len(spool.batch(10, 2500)) == 2
    assert len(spool.batch(10, 10)) == 1


def test_over_the_bound_the_oldest_lines_go_and_are_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 20_000)
    state = spool.put("state", "a1", "t", state="running")
    result = spool.put("result", "a1", "t", name="m", document={"x": "y" * 5000})
    for first in range(100):
        put_log(spool, "z" * 1000, first=first)
    reports = spool.batch(1000, MIB)
    assert spool.size_bytes <= 20_000
    assert [report["id"] for report in reports[:2]] == [state, result]
    logs = reports[2:]
    assert logs[-1]["first_line"] == 99
    assert sum(report["dropped"] + len(report["lines"]) for report in logs) == 100
    assert spool.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_states_and_results_are_never_dropped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1000)
    for _ in range(50):
        spool.put("result", "a1", "t", name="m", document={"x": "y" * 500})
    assert len(spool) == 50


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`error`: what writing fails with."""
    state: dict[str, Any] = {"error": None}
    real = agent.spool.write_durably

    def write(path: Path, data: bytes) -> None:
        if state["error"] is not None:
            raise OSError(state["error"], "the disk has failed")
        real(path, data)

    monkeypatch.setattr(agent.spool, "write_durably", write)
    return state


def test_on_a_full_disk_states_wait_in_memory_and_lines_are_counted(
    tmp_path: Path, disk: dict[str, Any]
) -> None:
    spool = Spool(tmp_path, MIB)
    disk["error"] = errno.ENOSPC
    put_log(spool, lines=7)
    state = spool.put("state", "a1", "t", state="failed")
    assert "the disk has failed" in spool.trouble
    assert [report["id"] for report in spool.batch(10, MIB)] == [state]
    assert spool.ended() == [("a1", "t", "failed")]
    assert not list(tmp_path.iterdir())
    spool.probe()
    assert spool.trouble
    disk["error"] = None
    spool.probe()
    assert not spool.trouble
    # What was held is on the disk now.
    assert [report["id"] for report in Spool(tmp_path, MIB).batch(10, MIB)] == [state]
    put_log(spool, first=7)
    assert spool.batch(10, MIB)[-1]["dropped"] == 7
    spool.forget([state])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_state_takes_the_room_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, MIB)
    put_log(spool, lines=3)
    put_log(spool, lines=4)
    real = agent.spool.write_durably

    def write(path: Path, data: bytes) -> None:
        if len(list(tmp_path.iterdir())) >= 2:
            raise OSError(errno.ENOSPC, "full")
        real(path, data)

    monkeypatch.setattr(agent.spool, "write_durably", write)
    spool.put("state", "a1", "t", state="done")
    assert [report["kind"] for report in spool.batch(10, MIB)] == ["log", "state"]
    assert spool.dropped_lines("a1") == {("a1", 0, "stdout"): 3}
    assert not spool.trouble


def test_other_disk_errors_do_not_cost_lines(tmp_path: Path, disk: dict[str, Any]) -> None:
    spool = Spool(tmp_path, MIB)
    put_log(spool)
    disk["error"] = errno.EIO
    spool.put("state", "a1", "t", state="done")
    assert [report["kind"] for report in spool.batch(10, MIB)] == ["log", "state"]


def test_broken_and_foreign_files_do_no_harm(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    good = put_log(spool)
    broken = put_log(spool)
    (path,) = tmp_path.glob(f"*{broken}*")
    path.write_text('{"id": ')
    (tmp_path / "notes.json").write_text("{}")
    # Broken while it waits, and broken when it is loaded.
    assert [report["id"] for report in Spool(tmp_path, MIB).batch(10, MIB)] == [good]
    assert [report["id"] for report in spool.batch(10, MIB)] == [good]
    assert len(list(tmp_path.glob("*.broken"))) == 1


def test_what_is_written_is_json_of_the_schema(tmp_path: Path) -> None:
    Spool(tmp_path, MIB).put("state", "a1", "t", state="running")
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_bytes())
    assert report["schema"] == "shardwise.report/1"
    assert path.stat().st_mode & 0o077 == 0
