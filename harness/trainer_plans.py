"""Plans of one strategy for every layer: a tiny graph's plan that says another parallelism."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace

from harness.graph_builder import mlp
from shardwise.answers import Options, plan
from shardwise.documents.parallelism import Parallelism, PlannedTrainer
from shardwise.documents.plan import Plan
from shardwise.hardware import load_hardware


@cache
def tiny_plan() -> Plan:
    options = Options(micro_batches=(1,), time_limit_s=5.0)
    return plan(mlp(64, 64, 2), load_hardware("dgx-v100-16gb"), 1, options=options)


def plan_of(
    parallelism: Parallelism,
    *,
    trainer: str = "torchtitan",
    samples: int = 2,
    sequence_length: int | None = 128,
    **members: Any,
) -> Plan:
    """Returns a plan of this parallelism, with `samples` of a micro-batch on one device."""
    batch = samples * parallelism.data * parallelism.micro_batches
    usual = {
        "gpus": parallelism.gpus,
        "nodes": -(-parallelism.gpus // 8),
        "batch_size": batch,
        "precision": "bf16",
        "trainer": PlannedTrainer(trainer, parallelism, sequence_length, None, None),
    }
    return replace(tiny_plan(), **usual | members)
