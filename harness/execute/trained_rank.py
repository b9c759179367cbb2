"""One rank's part of a plan, trained step by step on the model of a source."""

from __future__ import annotations

from typing import Any

import torch

from harness.execute.sources import captured_source
from shardwise.documents import Plan
from shardwise.execute.allocation import AllocationTracker
from shardwise.execute.master_weights import optimizer_of
from shardwise.execute.parallel import ParallelModule, mesh_of
from shardwise.measure.slowed import Slowed

Source = tuple[str, int | None, int | None]
"""A model: source, batch and sequence length."""


class TrainedRank:
    """The model, its optimizer and its inputs on one rank, with the plan's optimizer."""

    def __init__(self, source: Source, plan: Plan, rank: int, slowed: Slowed | None = None) -> None:
        captured = captured_source(*source)
        self._model = ParallelModule(captured, plan, mesh_of(plan, rank), "cpu", slowed=slowed)
        self._optimizer = optimizer_of(self._model.parameters(), plan.optimizer)
        self._inputs, _ = self._model.share(*captured.model.args)

    def step(self) -> None:
        """Takes one step of the optimizer, all micro-batches."""
        self._optimizer.zero_grad()
        loss = self._model(*self._inputs)
        (loss if isinstance(loss, torch.Tensor) else loss[0]).backward()
        self._optimizer.step()

    def live_tensors(self) -> list[Any]:
        """Returns what is held between steps: parameters, buffers, state and inputs."""
        state = [value for known in self._optimizer.state.values() for value in known.values()]
        return [*self._model.parameters(), *self._model.buffers(), *state, *self._inputs]

    def followed_peak(self) -> int:
        """Takes a step and returns its peak in bytes, by every tensor that it allocates."""
        tracker = AllocationTracker()
        tracker.follow(self.live_tensors(), "resident")
        with tracker:
            self.step()
        return tracker.peak_bytes
