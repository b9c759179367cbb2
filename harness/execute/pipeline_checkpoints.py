"""Checkpoints of pipelines: saved and loaded under different cuts, or none, on the same ranks.

Run by a keeper. Trains GPT-2 with tied embeddings for some steps under a pipeline or a plan, saves,
loads under another, and trains on, beside one device.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.execute import equality
from harness.execute.equality import ADAM
from harness.execute.pipeline_sweep import drawn, made_case, ranks_for
from shardwise import documents
from shardwise.execute.checkpoint import load, save
from shardwise.execute.parallel import ParallelModule, mesh_of
from shardwise.execute.pipeline.module import PipelineModule

FAMILY, RANKS, PARTS, STEPS = "GPT-2", 4, 2, 2
PAIRS = (
    ("two stages", "plan"),
    ("plan", "two stages"),
    ("two stages", "two others"),
    ("four stages", "two others"),
    ("two on each", "plan"),
    ("two stages", "two on each"),
)
"""Under what a checkpoint is saved, and under what it is loaded."""


def trained(
    rank: int, plan: dict[str, Any], path: str, loads: bool, saves: bool
) -> tuple[list[float], float]:
    """Loads, trains, saves; returns the losses and the learning rate at the end."""
    torch.set_num_threads(1)
    case = equality.CASES[FAMILY]
    model: ParallelModule
    with case.computing():
        if plan["schema"] == "shardwise.pipeline/1":
            model = PipelineModule(case.captured, documents.read(plan, documents.Pipeline), "cpu")
        else:
            read = documents.read(plan, documents.Plan)
            model = ParallelModule(case.captured, read, mesh_of(read, rank), "cpu")
        optimizer = torch.optim.Adam(model.parameters(), **ADAM)
        if loads:
            load(model, optimizer, path)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(*case.model.args)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    if saves:
        optimizer.param_groups[0]["lr"] = ADAM["lr"]
        save(model, optimizer, path)
    return losses, float(optimizer.param_groups[0]["lr"])


def _alone(rank: int) -> list[float]:
    return equality.reference(equality.CASES[FAMILY], PARTS, 2 * STEPS).losses


def moved(folder: str) -> dict[str, Any]:
    """Returns the losses of one device, and of each rank for each pair."""
    case, pipelines = made_case(FAMILY, [PARTS]), drawn(FAMILY)
    plans = {
        "plan": case.strategies.plan(RANKS, 2, micro_batches=PARTS),
        "two stages": pipelines.pipeline(RANKS, 2, 3, micro_batches=PARTS, bounds=(0, 2, 4)),
        "two others": pipelines.pipeline(RANKS, 2, 4, micro_batches=PARTS, bounds=(0, 3, 4)),
        "four stages": pipelines.pipeline(RANKS, 4, 4, micro_batches=PARTS),
        "two on each": pipelines.pipeline(
            RANKS, 4, 3, schedule="interleaved", micro_batches=PARTS, stages_per_rank=2
        ),
    }
    ranks = ranks_for(RANKS, [FAMILY], [PARTS])
    before = {
        first: ranks(trained, plans[first], f"{folder}/{first}", False, True)
        for first in dict.fromkeys(first for first, _ in PAIRS)
    }
    losses = {}
    for first, second in PAIRS:
        after = ranks(trained, plans[second], f"{folder}/{first}", True, False)
        losses[first, second] = [[*b[0], *a[0]] for b, a in zip(before[first], after, strict=True)]
    return {"alone": ranks(_alone)[0], "pairs": losses}
