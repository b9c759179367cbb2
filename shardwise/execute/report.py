"""`report`: logs every step of a parallel module beside what its plan predicts."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from shardwise.errors import BadInput
from shardwise.execute.parallel import ParallelModule
from shardwise.measure.reported import PLAN, log_step
from shardwise.measure.trackers import Tracker, open_tracker, tracker_of


def report(model: ParallelModule, writer: Any) -> None:
    """Logs the time of every step, its peak memory and the plan's predictions, on rank 0.

    `writer` is `tensorboard:DIR`, `wandb:PROJECT` or `mlflow:URI`, or what a script has open
    already: a SummaryWriter, a W&B run, the module mlflow. A step lasts from one call of the model
    to the next, so that the first is logged at the second call, and whatever the script does in
    between counts. Peak memory is that of this rank's CUDA allocator since the first call; on CPUs
    nothing counts it. Raises BadInput for another writer or module, and where a library is missing.
    """
    if not isinstance(model, ParallelModule):
        raise BadInput(
            f"{type(model).__name__} has no plan",
            field="model",
            expected="what shardwise.parallelize returned",
        )
    if dist.get_rank() != 0:
        return
    plan = model.plan
    name = plan.graph_name
    tracker = (
        open_tracker(writer, name, "writer") if isinstance(writer, str) else tracker_of(writer)
    )
    tracker.note({PLAN: plan.id})
    model.register_forward_pre_hook(_Steps(model, tracker))


class _Steps:
    """Notices when a step begins, which ends the one before."""

    def __init__(self, model: ParallelModule, tracker: Tracker) -> None:
        self._plan = model.plan
        self._device = model.device
        self._tracker = tracker
        self._began: float | None = None
        self._steps = 0

    def __call__(self, module: Any, inputs: Any) -> None:
        now = time.perf_counter()
        if self._began is not None:
            self._steps += 1
            log_step(self._tracker, self._plan, self._steps, now - self._began, self._peak_bytes())
        # Logging is no part of a step.
        self._began = time.perf_counter()

    def _peak_bytes(self) -> float | None:
        if self._device.type != "cuda":
            return None
        return float(torch.cuda.max_memory_allocated(self._device))
