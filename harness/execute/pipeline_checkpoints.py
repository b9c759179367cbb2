"""Checkpoints of pipelines: saved and loaded under different cuts, or none, on the same ranks.

    python -m harness.execute.pipeline_checkpoints FOLDER

Trains GPT-2 with tied embeddings for some steps under a pipeline or a plan, saves, loads under the
other, trains on, and prints the losses beside those of one device as JSON lines. A process of its
own, as `pipeline_sweep`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from harness.execute import equality
from harness.execute.equality import ADAM
from harness.execute.pipeline_sweep import made_case
from harness.execute.pipelines import Pipelines
from harness.execute.ranks import Ranks
from shardwise import documents
from shardwise.execute.checkpoint import load, save
from shardwise.execute.parallel import ParallelModule, mesh_of
from shardwise.execute.pipeline.module import PipelineModule

FAMILY, RANKS, PARTS, STEPS = "GPT-2", 4, 2, 3


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


def main(folder: str) -> None:
    """Prints a line per pair of plans."""
    torch.set_num_threads(1)
    case = made_case(FAMILY)
    pipelines = Pipelines(case.captured.graph)
    plans = {
        "plan": case.strategies.plan(RANKS, 2, micro_batches=PARTS),
        "two stages": pipelines.pipeline(RANKS, 2, 3, micro_batches=PARTS, bounds=(0, 2, 4)),
        "two others": pipelines.pipeline(RANKS, 2, 4, micro_batches=PARTS, bounds=(0, 3, 4)),
        "four stages": pipelines.pipeline(RANKS, 4, 4, micro_batches=PARTS),
        "two on each": pipelines.pipeline(
            RANKS, 4, 3, schedule="interleaved", micro_batches=PARTS, stages_per_rank=2
        ),
    }
    ranks = Ranks(RANKS, inherit=True)
    for first, second in (
        ("two stages", "plan"),
        ("plan", "two stages"),
        ("two stages", "two others"),
        ("four stages", "two others"),
        ("two on each", "plan"),
        ("two stages", "two on each"),
    ):
        path = f"{folder}/{first} {second}"
        before = ranks(trained, plans[first], path, False, True)
        after = ranks(trained, plans[second], path, True, False)
        line = {
            "first": first,
            "second": second,
            "losses": [[*b[0], *a[0]] for b, a in zip(before, after, strict=True)],
        }
        print(json.dumps(line), flush=True)
    ranks.stop()
    print(json.dumps({"alone": equality.reference(case, PARTS, 2 * STEPS).losses}))


if __name__ == "__main__":
    main(sys.argv[1])
