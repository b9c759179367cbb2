"""What an agent runs and how it ends, with real torchrun processes."""

from __future__ import annotations

import os
import signal

import pytest

from harness.agent.agent_harness import RunningAgent, wait_for

pytestmark = pytest.mark.torch
NASTY = [
    "$(touch pwned)",
    "`id`",
    "; rm -rf /",
    "a b\n*?~",
    "--nnodes=7",
    "-m",
    "'\"\\",
    "é|&<>",
    "",
]


def test_two_gloo_ranks_run_to_the_end(calm: RunningAgent) -> None:
    service = calm.service
    given = service.give("program", "ring", ranks_per_node=2)
    end = service.end_of(given)
    assert end["state"] == "done", (end, calm.text())
    assert service.states(given) == ["running", "done"]
    for rank in (0, 1):
        assert f"rank {rank} of 2 says 3" in service.lines(given, rank)
    results = service.of(given, "result")
    assert [(r["name"], r["document"]["sum"]) for r in results] == [("measurement", 3.0)]
    calm.assert_no_orphan()


@pytest.mark.full
def test_two_agents_worth_of_nodes_meet(calm: RunningAgent) -> None:
    """Two assignments of one launch on two loopback addresses: ranks follow the node's number."""
    service = calm.service
    first = service.give("program", "ring", nodes=2)
    second = service.give("program", "ring", nodes=2, node_rank=1, rendezvous=first["rendezvous"])
    assert service.end_of(first)["state"] == "done", service.of(first, "state")
    assert service.end_of(second)["state"] == "done", service.of(second, "state")
    assert "rank 0 of 2 says 3" in service.lines(first, 0)
    assert "rank 1 of 2 says 3" in service.lines(second, 1)


def test_arguments_arrive_literally_and_the_environment_is_filtered(calm: RunningAgent) -> None:
    service = calm.service
    given = service.give(
        "program", "arguments", *NASTY, environment={"FLAVOUR": "$HOME `id`"},
        plan={"schema": "shardwise.plan/1", "graph": "g"},
    )  # fmt: skip
    assert service.end_of(given)["state"] == "done", calm.text()
    (result,) = service.of(given, "result")
    assert result["document"]["arguments"] == NASTY
    environment = result["document"]["environment"]
    assert environment["FLAVOUR"] == "$HOME `id`"
    assert environment["SHARDWISE_ASSIGNMENT"] == given["id"]
    assert environment["SHARDWISE_LAUNCH"] == given["launch"]
    assert "SECRET_OF_THE_HOST" not in environment
    folder = calm.data / "runs" / given["id"]
    assert environment["SHARDWISE_RUN_DIR"] == str(folder)
    assert (folder / "plan.json").is_file()
    assert not (folder / "pwned").exists()
    assert service.key not in str(environment)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"entry_point": "rm"}, "not allowed"),
        ({"entry_point": "../program"}, "entry_point"),
        ({"entry_point": "strict", "arguments": ["UPPER"]}, "arguments[0]"),
        ({"arguments": ["a\0b"]}, "NUL"),
        ({"arguments": [1]}, "arguments"),
        ({"arguments": ["x" * 20_000]}, "too long"),
        ({"arguments": ["x"] * 300}, "at most 256"),
        ({"environment": {"LD_PRELOAD": "/tmp/evil.so"}}, "LD_PRELOAD"),
        ({"environment": {"PYTHONPATH": "/tmp"}}, "PYTHONPATH"),
        ({"environment": {"OTHER": "1"}}, "OTHER"),
        ({"environment": {"A=B": "1"}}, "environment"),
        ({"launch": "../../etc"}, "launch"),
        ({"rendezvous": {"id": "a b", "host": "127.0.0.1", "port": 2}}, "rendezvous.id"),
        ({"rendezvous": {"id": "a", "host": "--h", "port": 2}}, "rendezvous.host"),
        ({"ranks_per_node": 99}, "slots"),
        ({"time_limit_s": 1e9}, "time_limit_s"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value[:12],
)
def test_what_the_host_does_not_allow_is_refused(
    calm: RunningAgent, change: dict[str, object], reason: str
) -> None:
    given = calm.service.give("program", **{"arguments": ["wait"], **change})
    end = calm.service.end_of(given)
    assert end["state"] == "failed"
    assert reason in end["reason"]
    assert calm.service.states(given) == ["failed"]


def test_an_assignment_id_cannot_leave_the_data_directory(calm: RunningAgent) -> None:
    given = calm.service.give("program", "wait", id="../../escaped")
    assert "id" in calm.service.end_of(given)["reason"]
    assert not (calm.data.parent / "escaped").exists()
    assert not list(calm.data.parent.parent.glob("escaped*"))


@pytest.mark.full
def test_a_rank_that_raises_says_so(calm: RunningAgent) -> None:
    given = calm.service.give("program", "fail", ranks_per_node=2)
    end = calm.service.end_of(given)
    assert end["state"] == "failed"
    assert "status 1: RuntimeError: the loss is not a number" in end["reason"]
    assert end["exit_code"] == 1


def test_a_killed_rank_fails_the_launch_and_leaves_nothing(calm: RunningAgent) -> None:
    service = calm.service
    given = service.give("program", "wait", ranks_per_node=2)
    pid = int(service.says(given, "waiting", rank=1).split()[1])
    service.says(given, "waiting", rank=0)
    os.kill(pid, signal.SIGKILL)
    end = service.end_of(given)
    assert end["state"] == "failed"
    assert "rank 1 was killed by signal 9" in end["reason"]
    calm.assert_no_orphan()


def test_a_killed_torchrun_or_keeper_leaves_nothing(calm: RunningAgent) -> None:
    service = calm.service
    for who in (b"torch.distributed.run", b"keeper.py"):
        given = service.give("program", "deserter")
        deserter = int(service.says(given, "deserted").split()[1])
        victims = [p.pid for p in calm.processes() if who in _command(p.pid)]
        # torchrun's arguments are the keeper's last ones.
        victim = max(victims) if who != b"keeper.py" else min(victims)
        os.kill(victim, signal.SIGKILL)
        assert service.end_of(given)["state"] == "failed"
        calm.assert_no_orphan()
        wait_for(lambda pid=deserter: not _lives(pid), "the deserter's end")


def _command(pid: int) -> bytes:
    from pathlib import Path

    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _lives(pid: int) -> bool:
    from agent.processes import status_of

    status = status_of(pid)
    return status is not None and status.state not in "ZX"


def test_the_service_stops_a_job_and_the_processes_that_left_it(calm: RunningAgent) -> None:
    service = calm.service
    given = service.give("program", "deserter")
    deserter = int(service.says(given, "deserted").split()[1])
    service.says(given, "waiting")
    service.stop_ids.add(given["id"])
    end = service.end_of(given)
    assert (end["state"], end["reason"]) == ("stopped", "the service has ended it")
    calm.assert_no_orphan()
    assert not _lives(deserter)


def test_a_rank_that_ignores_sigterm_is_killed(calm: RunningAgent) -> None:
    service = calm.service
    given = service.give("program", "stubborn", ranks_per_node=2)
    pid = int(service.says(given, "waiting", rank=1).split()[1])
    service.stop_ids.add(given["id"])
    assert service.end_of(given)["state"] == "stopped"
    assert not _lives(pid)


def test_the_time_limit(calm: RunningAgent) -> None:
    given = calm.service.give("program", "wait", time_limit_s=3)
    end = calm.service.end_of(given)
    assert end["state"] == "failed"
    assert "limit of 3 s" in end["reason"]
    calm.assert_no_orphan()


def test_the_memory_limit(calm: RunningAgent) -> None:
    given = calm.service.give("program", "eat", "900", memory_limit_bytes=700 * 2**20)
    end = calm.service.end_of(given)
    assert end["state"] == "failed"
    assert "memory" in end["reason"]
    assert end["peak_rss_bytes"] > 700 * 2**20
    calm.assert_no_orphan()


def test_a_long_log_is_bounded_and_its_end_is_kept(calm: RunningAgent) -> None:
    service = calm.service
    given = service.give("program", "shout", "5000", "20000", ranks_per_node=1)
    assert service.end_of(given)["state"] == "done"
    reports = [r for r in service.of(given, "log") if r["stream"] == "stdout" and r["rank"] == 0]
    lines = service.lines(given)
    assert lines[-1] == "the last word"
    assert all(len(line.encode()) <= 4096 for line in lines)
    assert lines[0].endswith("bytes cut]")
    assert sum(len(line) for line in lines) <= 17.5 * 2**20
    assert sum(report["dropped"] for report in reports) + len(lines) == 5001
    expected = 0
    for report in reports:
        expected += report["dropped"]
        assert report["first_line"] == expected
        expected += len(report["lines"])
