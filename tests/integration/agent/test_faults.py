"""What an agent does when something fails: itself, its service, the link, the disk, the lease."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.processes import process_of, status_of
from harness.agent.agent_harness import FakeService, RunningAgent, agent_of, wait_for

pytestmark = pytest.mark.torch


def _lives(pid: int) -> bool:
    status = status_of(pid)
    return status is not None and status.state not in "ZX"


# Enrolment


def test_enrolment_is_once_and_its_key_is_kept_for_the_owner_only(
    service: FakeService, agent: RunningAgent
) -> None:
    identity = agent.data / "identity.json"
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    assert stat.S_IMODE(agent.data.stat().st_mode) == 0o700
    (enrolment,) = service.enrolments
    assert enrolment["name"] == "host-a"
    inventory = enrolment["inventory"]
    assert inventory["schema"] == "shardwise.inventory/1"
    assert inventory["slots"] == 4
    assert {e["name"] for e in inventory["entry_points"]} == {
        "program", "strict", "shardwise.run", "shardwise.measure"
    }  # fmt: skip
    assert agent.stop() == 0
    agent.start()
    assert len(service.enrolments) == 1
    assert service.key not in agent.text()
    assert "swe_right" not in agent.text()


@pytest.mark.parametrize("token", ["swe_wrong", "swe_right"])
def test_a_wrong_or_used_token_is_refused(service: FakeService, tmp_path: Path, token: str) -> None:
    running = RunningAgent(service, tmp_path / "a", start=False)
    (running.folder / "token").write_text(token)
    if token == "swe_right":
        service.token = ""
    done = subprocess.run(running.command(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "refuses the enrolment" in done.stderr
    assert "Traceback" not in done.stderr
    assert token not in done.stderr
    assert not (running.data / "identity.json").exists()


def test_a_second_agent_on_the_same_folder_is_refused(agent: RunningAgent) -> None:
    done = subprocess.run(agent.command(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "another agent runs with it" in done.stderr


def test_an_agent_that_was_removed_stops_its_jobs_and_ends(
    service: FakeService, agent: RunningAgent
) -> None:
    given = service.give("program", "wait")
    service.says(given, "waiting")
    service.fault = "revoked"
    assert agent.process is not None
    assert agent.process.wait(60) == 2
    agent.assert_no_orphan()
    assert "does not know this agent any more" in agent.text()


# The agent dies


def test_a_killed_agent_takes_its_jobs_along_and_says_so_at_its_restart(
    service: FakeService, agent: RunningAgent
) -> None:
    given = service.give("program", "deserter", ranks_per_node=2)
    deserters = [int(service.says(given, "deserted", rank).split()[1]) for rank in (0, 1)]
    boot = service.heartbeats[-1]["boot_id"]
    agent.kill()
    # Without any restart: the keeper ends them all.
    agent.assert_no_orphan()
    for pid in deserters:
        wait_for(lambda pid=pid: not _lives(pid), "the deserter's end")
    agent.start()
    end = service.end_of(given)
    assert end["state"] == "lost"
    assert "restart" in end["reason"]
    assert service.heartbeats[-1]["boot_id"] != boot
    beats = [beat for beat in service.heartbeats if beat["boot_id"] != boot]
    reported = [(job["assignment"], job["state"]) for beat in beats for job in beat["jobs"]]
    assert set(reported) <= {(given["id"], "lost")}, (
        "only as an end that is still to be acknowledged"
    )


def test_orphans_of_a_killed_agent_and_keeper_are_swept(
    service: FakeService, agent: RunningAgent
) -> None:
    given = service.give("program", "deserter", "marked")
    orphan = int(service.says(given, "deserted").split()[1])
    service.says(given, "waiting")
    path = agent.data / "jobs" / f"{given['id']}.json"
    record = json.loads(path.read_bytes())
    # Stopped, so that it cannot do its work when the agent dies.
    os.kill(record["pid"], signal.SIGSTOP)
    agent.kill()
    os.kill(record["pid"], signal.SIGKILL)
    wait_for(lambda: len(agent.processes()) == 1, "only the orphan is left")
    assert _lives(orphan)
    # A number that is used again: what has it now lacks the marker and must live on.
    innocent = subprocess.Popen(["sleep", "600"])
    other = process_of(innocent.pid)
    assert other is not None
    path.write_text(json.dumps({**record, "pid": other.pid, "start": other.start}))
    agent.start()
    assert service.end_of(given)["state"] == "lost"
    assert not _lives(orphan)
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()
    assert not path.exists()


def test_sigterm_stops_the_jobs_ships_what_waits_and_exits_with_zero(
    service: FakeService, agent: RunningAgent
) -> None:
    given = service.give("program", "wait", ranks_per_node=2)
    service.says(given, "waiting", 1)
    assert agent.stop() == 0
    # Nothing is left that could send it later.
    end = service.end_of(given)
    assert (end["state"], end["reason"]) == ("stopped", "the agent was stopped")
    assert not list((agent.data / "spool").iterdir())
    assert not agent.processes()


# The service or the link fails


def test_an_expired_lease_stops_the_job(
    service: FakeService, agent: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = service.give("program", "stubborn", ranks_per_node=2)
    pids = [int(service.says(given, "waiting", rank).split()[1]) for rank in (0, 1)]
    heard: list[float] = []
    beat = service.beat

    def timed_beat(document: dict[str, Any]) -> dict[str, Any]:
        heard.append(time.monotonic())
        return beat(document)

    monkeypatch.setattr(service, "beat", timed_beat)
    service.lease_s = 5.0
    wait_for(lambda: len(heard) > 3, "the shorter lease")
    service.fault = "drop"
    beats = len(heard)
    agent.assert_no_orphan()
    ended = time.monotonic()
    assert not any(map(_lives, pids))
    assert len(heard) <= beats + 1, "one may have been on its way"
    # A lease counts from when its heartbeat was sent: not before the one before it was heard.
    assert ended - heard[-2] > service.lease_s, "stopped before the lease's end"
    service.fault = None
    end = service.end_of(given)
    assert end["state"] == "stopped"
    assert "lease expired" in end["reason"]
    # It takes work again.
    again = service.give("program", "arguments", "x")
    assert service.end_of(again)["state"] == "done"


@pytest.mark.full
def test_a_job_outlives_a_short_cut_and_its_reports_are_kept(
    service: FakeService, agent: RunningAgent, tmp_path: Path
) -> None:
    # Held, it cannot end before the service has heard of it.
    given = service.give("program", "hold_alone", str(tmp_path / "go"), ranks_per_node=2)
    wait_for(lambda: "running" in service.states(given), "running")
    wait_for(lambda: "running" in _listed(service), "a heartbeat with the running job")
    wait_for(lambda: not _spooled(agent, "state"), "an acknowledged start")
    service.fault = "drop"
    (tmp_path / "go").touch()
    wait_for(lambda: _spooled(agent, "state"), "the end in the spool")
    service.fault = None
    assert service.end_of(given)["state"] == "done"
    assert service.of(given, "result")
    wait_for(lambda: not _spooled(agent, ""), "an empty spool")
    wait_for(lambda: not service.heartbeats[-1]["jobs"], "an acknowledged end")


def test_an_assignment_that_is_handed_out_twice_runs_once(
    service: FakeService, agent: RunningAgent, tmp_path: Path
) -> None:
    """As the service does with what it has not heard of: while it runs and when it has ended."""
    go = tmp_path / "go"
    given = service.give("program", "hold_alone", str(go))
    service.says(given, "joined")
    service.work.put(given)
    wait_for(service.work.empty, "handed out again")
    go.touch()
    assert service.end_of(given)["state"] == "done"
    assert service.end_of(service.give("program", "arguments"))["state"] == "done"
    service.work.put(given)
    assert service.end_of(service.give("program", "arguments"))["state"] == "done"
    assert agent.text().count('"message": "starting"') == 3


def test_reports_survive_a_killed_agent_and_a_restarted_service(
    service: FakeService, agent: RunningAgent, tmp_path: Path
) -> None:
    given = service.give("program", "hold_alone", str(tmp_path / "go"), ranks_per_node=2)
    wait_for(lambda: "running" in service.states(given), "running")
    wait_for(lambda: service.heartbeats[-1]["jobs"], "a heartbeat with the job")
    wait_for(lambda: not _spooled(agent, "state"), "an acknowledged start")
    service.stop()
    (tmp_path / "go").touch()
    wait_for(lambda: _spooled(agent, "state"), "the end in the spool", 120)
    agent.kill()
    assert service.states(given) == ["running"]
    service.start()
    agent.start()
    end = service.end_of(given)
    assert end["state"] == "done", "an end that was spooled is no loss"
    assert service.of(given, "result")
    assert "rank 1 of 2 says 3" in service.lines(given, 1)
    wait_for(lambda: not _spooled(agent, ""), "an empty spool")


def test_reports_whose_answer_is_cut_off_are_sent_again_by_the_same_id(
    service: FakeService, agent: RunningAgent
) -> None:
    service.deaf = {"reports"}
    given = service.give("program", "arguments", "x")
    wait_for(lambda: len(service.received) > len(set(service.received)), "a repeated report")

    def listed() -> bool:
        return any(job["state"] == "done" for job in service.heartbeats[-1]["jobs"])

    # Or the service would take the silence about it for its loss.
    wait_for(listed, "an end without acknowledgement in the heartbeat")
    service.deaf = set()
    assert service.end_of(given)["state"] == "done"


@pytest.mark.full
def test_refused_reports_do_not_block_the_others(service: FakeService, agent: RunningAgent) -> None:
    service.refuse_reports = lambda report: "no" if report["kind"] == "log" else None
    given = service.give("program", "ring", ranks_per_node=2)
    assert service.end_of(given)["state"] == "done"
    wait_for(lambda: not _spooled(agent, ""), "an empty spool")


def _listed(service: FakeService) -> list[str]:
    """Returns the states of jobs in the last heartbeat."""
    return [job["state"] for job in service.heartbeats[-1]["jobs"]]


def _spooled(agent: RunningAgent, kind: str) -> list[Path]:
    return [path for path in (agent.data / "spool").glob("*.json") if kind in path.name]


# The disk is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB; only root can make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_said_and_jobs_are_still_stopped(
    service: FakeService, small_disk: Path, config: str
) -> None:
    with agent_of(service, small_disk / "a", config) as agent:
        given = service.give("program", "deserter")
        service.says(given, "deserted")
        with _filled(small_disk / "filler"):
            service.stop_ids.add(given["id"])
            # Its end cannot be written, but it is reported from memory.
            assert service.end_of(given)["state"] == "stopped"
            agent.assert_no_orphan()
            wait_for(lambda: service.heartbeats[-1]["draining"], "a draining agent")
            assert "no space left" in service.heartbeats[-1]["reason"]
            # Each heartbeat tries to write one.
            spool = agent.data / "spool"
            wait_for(lambda: not list(spool.glob(".*")), "no temporary file")
            again = service.give("program", "arguments", "x")
            beats = len(service.heartbeats)
            wait_for(lambda: len(service.heartbeats) > beats + 3, "more heartbeats")
            assert service.work.qsize() == 1, "a draining agent takes no work"
        wait_for(lambda: not service.heartbeats[-1]["draining"], "recovery")
        assert service.end_of(again)["state"] == "done"


@pytest.mark.full
def test_nothing_is_started_that_cannot_be_recorded(
    service: FakeService, small_disk: Path, config: str
) -> None:
    with agent_of(service, small_disk / "a", config) as agent, _filled(small_disk / "filler"):
        given = service.give("program", "wait")
        end = service.end_of(given)
        assert end["state"] == "failed"
        assert "no space left" in end["reason"]
        assert service.states(given) == ["failed"]
        assert not agent.processes()


@contextlib.contextmanager
def _filled(path: Path) -> Iterator[None]:
    """The disk stays full, whatever is freed on it meanwhile; empty again at the end."""
    over = threading.Event()

    def fill(stream: io.FileIO) -> None:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(size))

    def keep_full(stream: io.FileIO) -> None:
        while not over.wait(0.002):
            fill(stream)

    with path.open("wb", buffering=0) as stream:
        fill(stream)
        keeper = threading.Thread(target=keep_full, args=(stream,), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()
            path.unlink()


@pytest.mark.full
def test_files_of_ranks_are_bounded_where_the_host_says_so(
    service: FakeService, tmp_path: Path, config: str
) -> None:
    bounded = 'file_limit_bytes = "1MiB"\n' + config
    with agent_of(service, tmp_path / "a", bounded):
        given = service.give("program", "limit")
        assert service.end_of(given)["state"] == "done"
        (result,) = service.of(given, "result")
        assert result["document"] == {"file_limit_bytes": 2**20, "core_limit_bytes": 0}
