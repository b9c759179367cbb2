"""Processes: found by marker and descent, signalled only when they are who they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ledger import Record, host_boot, read_records, write_record
from agent.processes import (
    Process,
    descendants,
    environment_of,
    is_alive,
    marked,
    process_of,
    process_table,
    resident_bytes,
    send,
    status_of,
)
from agent.spool import Spool
from agent.sweep import AGENT_MARKER, sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def wait_for(what: object) -> None:
    until = time.monotonic() + 30
    while not what():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "600"], env={"MARK": "m1", AGENT_MARKER: "agent_t"})
    yield started
    started.kill()
    started.wait()


def test_a_name_with_brackets_and_blanks_is_read_right(tmp_path: Path) -> None:
    program = tmp_path / ") R 1 (x"
    program.symlink_to("/bin/sleep")
    started = subprocess.Popen([str(program), "600"])
    wait_for(lambda: b"R 1" in Path(f"/proc/{started.pid}/stat").read_bytes())
    status = status_of(started.pid)
    assert status is not None
    assert status.parent == os.getpid()
    started.kill()
    started.wait()
    assert status_of(started.pid) is None


def test_a_process_is_found_by_its_marker_and_by_descent(child: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: marked("MARK", "m1"))
    own = process_of(child.pid)
    assert marked("MARK", "m1") == {own}
    assert not marked("MARK", "m")
    me = process_of(os.getpid())
    assert me is not None
    assert own in descendants(me, process_table())
    assert environment_of(child.pid)[b"MARK"] == b"m1"
    assert resident_bytes([own]) > 0  # type: ignore[list-item]


def test_a_number_that_is_used_again_is_not_signalled(child: subprocess.Popen[bytes]) -> None:
    own = process_of(child.pid)
    assert own is not None
    earlier = Process(own.pid, own.start - 1)
    assert not send(earlier, signal.SIGKILL)
    assert not is_alive(earlier)
    assert child.poll() is None
    assert send(own, signal.SIGKILL)
    child.wait()
    assert not send(own, signal.SIGKILL)


def test_a_zombie_is_not_alive() -> None:
    started = subprocess.Popen(["true"])
    own = process_of(started.pid)
    assert own is not None
    wait_for(lambda: not is_alive(own))
    assert process_of(started.pid) == own
    started.wait()


def test_the_sweep_ends_what_is_marked_and_reports_it_once(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    jobs, spool = tmp_path / "jobs", Spool(tmp_path / "spool", 2**20)
    jobs.mkdir()
    (tmp_path / "spool").mkdir()
    innocent = subprocess.Popen(["sleep", "600"])
    other = process_of(innocent.pid)
    assert other is not None
    write_record(jobs, Record("a1", "t1", host_boot(), other.pid, other.start))
    write_record(jobs, Record("a2", "t2", "another boot", 1, 1))
    write_record(jobs, Record("a3", "t3", host_boot()))
    (jobs / "broken.json").write_text("{")
    spool.put("state", "a3", "t3", state="done")
    wait_for(lambda: marked(AGENT_MARKER, "agent_t"))
    assert not sweep(jobs, spool, "agent_t", None, 20.0)
    assert child.wait(10) == -signal.SIGKILL
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()
    ends = [(r["assignment"], r["state"]) for r in spool.batch(10, 2**20)]
    assert ends == [("a3", "done"), ("a1", "lost"), ("a2", "lost")]
    assert not read_records(jobs)
    assert not list(jobs.iterdir())


def test_the_sweep_ends_a_recorded_keeper_and_what_descends_from_it(tmp_path: Path) -> None:
    """What has dropped the marker is found below the keeper that has it."""
    (tmp_path / "spool").mkdir()
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    keeper = subprocess.Popen(
        ["sh", "-c", "env -i sleep 600 & echo $!; wait"],
        env={AGENT_MARKER: "agent_k", "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
    )
    assert keeper.stdout is not None
    below = int(keeper.stdout.readline())
    wait_for(lambda: b"sleep" in Path(f"/proc/{below}/cmdline").read_bytes())
    own = process_of(keeper.pid)
    assert own is not None
    write_record(jobs, Record("a1", "t1", host_boot(), own.pid, own.start))
    assert not sweep(jobs, Spool(tmp_path / "spool", 2**20), "agent_k", None, 20.0)
    keeper.wait(10)

    def has_ended() -> bool:
        status = status_of(below)
        return status is None or status.state in "ZX"

    # Without its keeper it is not looked for again: it has been signalled, and may be about to die.
    wait_for(has_ended)
