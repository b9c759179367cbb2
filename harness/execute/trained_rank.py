"""One rank's part of a plan or a pipeline, trained step by step on the model of a source."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from harness.execute.sources import captured_source
from shardwise.documents import Pipeline, Plan
from shardwise.execute.allocation import AllocationTracker
from shardwise.execute.captured import Captured
from shardwise.execute.master_weights import optimizer_of
from shardwise.execute.parallel import ParallelModule, mesh_of
from shardwise.execute.pipeline.module import PipelineModule
from shardwise.execute.timing import time_steps
from shardwise.measure.slowed import Slowed

Source = tuple[str, int | None, int | None] | tuple[str, int | None, int | None, str]
"""A model: source, batch and sequence length, and what of it is tuned."""


class TrainedRank:
    """The model, its optimizer and its inputs on one rank, with the plan's optimizer."""

    def __init__(self, source: Source, plan: Plan, rank: int, slowed: Slowed | None = None) -> None:
        captured = captured_source(*source)
        model = ParallelModule(captured, plan, mesh_of(plan, rank), "cpu", slowed=slowed)
        self._train(model, plan, captured)

    def _train(self, model: ParallelModule, plan: Plan, captured: Captured) -> None:
        self._model = model
        self._optimizer = optimizer_of(model.parameters(), plan.optimizer)
        self._inputs, _ = model.share(*captured.model.args)

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


class TrainedStages(TrainedRank):
    """The same of a pipeline: this rank's stages."""

    def __init__(self, source: Source, pipeline: Pipeline) -> None:
        captured = captured_source(*source)
        self._stages = PipelineModule(captured, pipeline, "cpu")
        self._train(self._stages, pipeline, captured)

    def measured(self, warm_up: int, steps: int) -> dict[str, float]:
        """Returns the median step in seconds, the slowest rank's in each, the share of the steps in
        which this rank waited for others, and its own peak in bytes."""
        for _ in range(warm_up):
            self.step()
        began, waited_s = perf_counter(), self._stages.waited_s
        for _ in range(steps):
            self.step()
        waited = (self._stages.waited_s - waited_s) / (perf_counter() - began)
        times = time_steps(
            self.step, self.live_tensors, torch.device("cpu"),
            warm_up=0, steps=steps, one_program=False, least_timed=1,
        )  # fmt: skip
        mine = times.peak_bytes[dist.get_rank()]
        return {"step_s": median(times.iterations_s), "waited": waited, "peak_bytes": float(mine)}
