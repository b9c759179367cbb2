"""Launches with and without a cgroup, processes that do not die, folders that would mislead."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.processes import status_of
from agent.scope import parent_folder
from harness.agent.agent_harness import FakeService, RunningAgent, agent_of, wait_for

pytestmark = pytest.mark.torch
FREEZER = Path("/sys/fs/cgroup/freezer")


def _lives(pid: int) -> bool:
    status = status_of(pid)
    return status is not None and status.state not in "ZX"


@pytest.fixture(params=["auto", pytest.param("off", marks=pytest.mark.full)])
def scoped(
    request: pytest.FixtureRequest, service: FakeService, tmp_path: Path, config: str
) -> Iterator[RunningAgent]:
    """An agent with a cgroup for each launch (where the host lets it), and one without."""
    if request.param == "auto" and parent_folder("auto") is None:
        pytest.skip("no cgroup v2 that may be divided")
    with agent_of(service, tmp_path / "agent", f'cgroup = "{request.param}"\n' + config) as running:
        yield running


def test_a_deserter_is_stopped_with_its_launch(scoped: RunningAgent) -> None:
    service = scoped.service
    given = service.give("program", "deserter")
    deserter = int(service.says(given, "deserted").split()[1])
    service.stop_ids.add(given["id"])
    assert service.end_of(given)["state"] == "stopped"
    scoped.assert_no_orphan()
    assert not _lives(deserter)
    left = parent_folder("auto")
    # It goes after the end is reported.
    wait_for(
        lambda: left is None or not list(left.glob(f"*{given['id']}*")), "the scope is removed"
    )


def test_a_deserter_does_not_outlive_a_launch_that_ends(scoped: RunningAgent) -> None:
    service = scoped.service
    given = service.give("program", "deserter", "marked")
    deserter = int(service.says(given, "deserted").split()[1])
    os.kill(int(service.says(given, "waiting").split()[1]), signal.SIGTERM)
    end = service.end_of(given)
    assert end["state"] == "failed"
    assert "killed by signal 15" in end["reason"]
    assert not _lives(deserter)


def test_the_scope_of_a_killed_agent_is_removed_at_its_restart(
    service: FakeService, tmp_path: Path, config: str
) -> None:
    parent = parent_folder("auto")
    if parent is None:
        pytest.skip("no cgroup v2 that may be divided")
    with agent_of(service, tmp_path / "agent", config) as agent:
        given = service.give("program", "deserter")
        deserter = int(service.says(given, "deserted").split()[1])
        (scope,) = parent.glob(f"*{given['id']}")
        keeper = min(p.pid for p in agent.processes())
        os.kill(keeper, signal.SIGSTOP)
        agent.kill()
        os.kill(keeper, signal.SIGKILL)
        # Without marker, keeper or agent: only its cgroup knows the deserter.
        wait_for(lambda: not agent.processes(), "no process is marked")
        assert _lives(deserter)
        agent.start()
        assert not _lives(deserter)
        assert service.end_of(given)["state"] == "lost"
        assert not scope.exists()


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A frozen process takes no signal, as one in a driver's uninterruptible wait."""
    folder = FREEZER / f"shardwise-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no freezer (cgroup v1) that may be divided")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (folder / "cgroup.procs").read_text(), "an empty freezer")
    folder.rmdir()


@pytest.mark.full
def test_a_process_that_does_not_die_drains_the_node(
    service: FakeService, tmp_path: Path, config: str, freezer: Path
) -> None:
    quick = config.replace("kill_wait_s = 5", "kill_wait_s = 1")
    with agent_of(service, tmp_path / "agent", quick) as agent:
        given = service.give("program", "wait", ranks_per_node=2)
        pid = int(service.says(given, "waiting", 1).split()[1])
        service.says(given, "waiting", 0)
        (freezer / "cgroup.procs").write_text(str(pid))
        (freezer / "freezer.state").write_text("FROZEN")
        wait_for(lambda: "FROZEN" in (freezer / "freezer.state").read_text(), "a frozen rank")
        service.stop_ids.add(given["id"])
        end = service.end_of(given)
        assert end["state"] == "stopped"
        assert "processes do not die" in end["reason"]
        wait_for(lambda: service.heartbeats[-1]["draining"], "a draining agent")
        assert f"do not die: {pid}" in service.heartbeats[-1]["reason"]
        again = service.give("program", "arguments", "x")
        (freezer / "freezer.state").write_text("THAWED")
        agent.assert_no_orphan()
        wait_for(lambda: not service.heartbeats[-1]["draining"], "recovery")
        end = service.end_of(again)
        assert end["state"] == "done", end["reason"]


@pytest.mark.full
def test_two_launches_share_the_slots_and_a_third_waits(
    service: FakeService, tmp_path: Path, config: str
) -> None:
    with agent_of(service, tmp_path / "agent", config):
        first = service.give("program", "wait", ranks_per_node=2)
        second = service.give("program", "wait", ranks_per_node=2)
        for given in (first, second):
            service.says(given, "waiting", 1)
        third = service.give("program", "arguments", "x")
        beats = len(service.heartbeats)
        wait_for(lambda: len(service.heartbeats) > beats + 3, "more heartbeats")
        assert not service.states(third)
        assert {job["assignment"] for job in service.heartbeats[-1]["jobs"]} == {
            first["id"],
            second["id"],
        }
        service.stop_ids.add(first["id"])
        assert service.end_of(third)["state"] == "done"
        assert service.states(second) == ["running"]


def test_a_users_modules_are_not_taken_for_ours(
    service: FakeService, tmp_path: Path, config: str
) -> None:
    """A launch from a folder with an agent.py, worker.py, service.py and torch.py of its own."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in ("agent", "worker", "service", "json", "subprocess", "psutil"):
        (folder / f"{name}.py").write_text(f"OWNER = '{name} of the user'\n")
    (folder / "training.py").write_text(
        "import agent, worker, service, sys\n"
        "print(agent.OWNER, worker.OWNER, service.OWNER, sep=', ', flush=True)\n"
    )
    entry = f"""
[entry_points.theirs]
command = ["python", "-m", "training"]
directory = "{folder}"
"""
    with agent_of(service, tmp_path / "agent", config + entry):
        given = service.give("theirs")
        assert service.end_of(given)["state"] == "done", service.lines(given, 0, "stderr")
        assert service.lines(given) == [
            "agent of the user, worker of the user, service of the user"
        ]


@pytest.mark.full
def test_a_program_that_is_missing_is_said(
    service: FakeService, tmp_path: Path, config: str
) -> None:
    entry = '\n[entry_points.missing]\ncommand = ["/nonexistent/train"]\n'
    with agent_of(service, tmp_path / "agent", config + entry):
        given = service.give("missing")
        end = service.end_of(given)
        assert end["state"] == "failed"
        assert "/nonexistent/train: No such file" in end["reason"]


def test_a_port_that_is_taken_is_said(calm: RunningAgent) -> None:
    service = calm.service
    holder = subprocess.Popen(
        ["python3", "-c", "import socket,time; s=socket.create_server(('0.0.0.0',0));"
         "print(s.getsockname()[1],flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    port = int(holder.stdout.readline())
    given = service.give(
        "program", "wait", rendezvous={"id": "l", "host": "127.0.0.1", "port": port}
    )
    end = service.end_of(given)
    holder.kill()
    holder.wait()
    assert end["state"] == "failed"
    assert "in use" in end["reason"]
