"""A captured module as its plan runs it: in one stage, or in several."""

from __future__ import annotations

import torch
import torch.distributed as dist

from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.execute.captured import Captured
from shardwise.execute.parallel import ParallelModule, mesh_of
from shardwise.execute.pipeline.document import require_sound
from shardwise.execute.pipeline.module import PipelineModule
from shardwise.measure.slowed import Slowed


def require_runnable(plan: Plan, compile: bool | None, slowed: Slowed | None = None) -> None:
    """Raises `BadInput` for stages that do not go together, and for what stages do not do."""
    if not plan.piped:
        return
    if compile:
        raise BadInput(
            "pipelines are not compiled", field="compile", expected="False (--no-compile)"
        )
    if slowed is not None:
        raise BadInput("ranks of pipelines are not slowed", field="slowed", expected="one stage")
    require_sound(plan)


def planned_module(
    captured: Captured,
    plan: Plan,
    device: torch.device | str | None = None,
    compile: bool | None = None,
    slowed: Slowed | None = None,
) -> ParallelModule:
    """Returns a captured module as a runnable plan has it on this rank.

    Raises `BadInput` if the plan is for another graph or number of ranks, or cannot be compiled.
    """
    if plan.piped:
        return PipelineModule(captured, plan, device)
    mesh = mesh_of(plan, dist.get_rank())
    return ParallelModule(captured, plan, mesh, device, compile, slowed)
