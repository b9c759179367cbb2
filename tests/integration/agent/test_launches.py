"""What an agent runs and how it ends, with real torchrun processes."""

from __future__ import annotations

import pytest
from agent_harness import RunningAgent

pytestmark = [pytest.mark.torch, pytest.mark.slow]


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
