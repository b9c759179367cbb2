"""The agent's own books of its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.allow import Program
from agent.assignment import Assignment, Rendezvous
from agent.config import load_config
from agent.daemon import Agent
from agent.datadir import DataDir
from agent.identity import Identity
from agent.job import Host, Job
from agent.spool import Spool


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    config = load_config(None)
    with DataDir(tmp_path / "data") as data:
        host = Host("agent_1", config, data, Spool(data.spool, config.spool_bytes), None)
        yield Agent(Identity("http://127.0.0.1:1", "agent_1", "key", "host-a", 5.0, 1.0), host)


def _job(agent: Agent) -> Job:
    meeting = Rendezvous("lnc_1", "127.0.0.1", 29500)
    assignment = Assignment(
        "asg_1", "lnc_1", "token", "run", "program", (), {}, None, None, 1, 0, 1, meeting, 0, 0, 0
    )
    return Job(assignment, Program(("true",), {}, None, 0, 0), {}, agent.host)


def test_a_job_that_is_not_started_yet_is_kept_and_can_be_stopped(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread starts a moment after it has its slots; the agent may look, or stop, between."""
    job, free = _job(agent), agent._slots.free
    agent._jobs["asg_1"] = (job, agent._slots.take(1))
    agent._look_after_jobs()
    assert agent._jobs
    assert agent._slots.free == free - 1
    agent._stop_jobs("stopped", "the agent was stopped")
    assert job._wish is not None and job._wish.reason == "the agent was stopped"
    monkeypatch.setattr(job, "run", lambda: None)
    job.start()
    job.join()
    agent._look_after_jobs()
    assert not agent._jobs
    assert agent._slots.free == free
