"""`parallelize`: turns a module and a plan into an ordinary module that trains in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from shardwise import documents
from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.execute.captured import capture_for
from shardwise.execute.parallel import ParallelModule, require_ranks
from shardwise.execute.pipeline.document import strategy_of
from shardwise.execute.planned import planned_module, require_runnable
from shardwise.graph.graph import Graph


def parallelize(
    module: torch.nn.Module,
    example_inputs: Any,
    plan: Plan | Mapping[str, Any],
    *,
    graph: Graph | None = None,
    device: torch.device | str | None = None,
    compile: bool | None = None,
) -> ParallelModule:
    """Returns `module` as the plan runs it on the ranks of torch.distributed.

    The plan is a `shardwise.plan/1` or `/2`, or a `shardwise.pipeline/1`.

    `module` returns its loss; training starts from its values, so seed all ranks alike or load a
    checkpoint. `example_inputs` are a whole batch: positional (a tuple) or keyword (a dict)
    arguments of which only shapes and dtypes matter. Call the result with the whole batch or with
    this rank's share of it; it returns what `module` would return for the whole batch. `graph` is
    the plan's graph; it helps if that was captured under other names (`hf:`). The tensors are on
    `device`, by default that of the module's parameters. With `compile` torch.compile makes one
    program of the operators between collectives; by default it does so if the plan is for such
    kernels (assumed of GPUs, and on GPUs only; or `--kernels compiled`) and can be compiled;
    `program.obstacle` says if it cannot.

    Raises `BadInput` if the plan is for another graph or number of ranks, or is to be compiled and
    cannot be; `CaptureError` if the module cannot be captured. torch.distributed must be
    initialised.
    """
    if not dist.is_initialized():
        raise BadInput(
            "torch.distributed is not initialised", expected="torch.distributed.init_process_group"
        )
    if not isinstance(plan, Plan):
        plan = documents.read(plan, Plan)
    require_runnable(plan, compile)
    require_ranks(plan)
    captured = capture_for(module, example_inputs, strategy_of(plan), graph)
    return planned_module(captured, plan, device, compile)
