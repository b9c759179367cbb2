"""A fake service and an agent for each test that breaks them; one shared for those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.agent.agent_harness import FakeService, RunningAgent, agent_of

pytest.importorskip("psutil", reason="needs shardwise[agent]")
pytest.importorskip("httpx", reason="needs shardwise[agent]")
pytest.importorskip("torch", reason="launches are torchrun's")

PROGRAM = Path(__file__).parents[3] / "harness" / "agent" / "rank_program.py"
LEASE_S = 120.0
"""Longer than an agent or its service may be without a turn; who tests leases shortens it."""

CONFIG = f"""
slots = 4
environment = ["OMP_NUM_THREADS", "FLAVOUR"]
stop_grace_s = 1.5
kill_wait_s = 5
[entry_points.program]
command = ["python", "{PROGRAM}"]
allow_arguments = true
[entry_points.strict]
command = ["python", "{PROGRAM}"]
allow_arguments = "[a-z]+"
"""


@pytest.fixture
def config() -> str:
    return CONFIG


@pytest.fixture
def service() -> Iterator[FakeService]:
    fake = FakeService(LEASE_S)
    yield fake
    fake.stop()


@pytest.fixture
def agent(service: FakeService, tmp_path: Path, config: str) -> Iterator[RunningAgent]:
    with agent_of(service, tmp_path / "agent", config) as running:
        yield running


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent that tests share: they leave it as it was."""
    fake = FakeService(LEASE_S)
    with agent_of(fake, tmp_path_factory.mktemp("calm") / "agent", CONFIG) as running:
        yield running
    fake.stop()
