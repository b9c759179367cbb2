"""Compiled plans against one device; run by a keeper.

A case is family and seed; `ResNet float64` is a family in float64. `aot_eager` traces what is
compiled, forward and backward, and runs what it traced without writing C++, which takes seconds for
every region.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from harness.execute import equality
from harness.execute.bounds import KINDS
from harness.execute.ranks import Ranks

COMPILE = torch.compile
ZERO = ((0,), (1,), (2,), (0, 1, 2))


def plan_of(name: str, world: int, seed: int) -> dict[str, Any]:
    """Returns one seed's plan of a family, which recomputes and rebuilds nothing."""
    strategies = equality.case_of(name).strategies
    zero = ZERO[seed % len(ZERO)]
    return strategies.plan(world, seed, zero=zero, recompute="never", reuse=False)


def compare(rank: int, name: str, plan: dict[str, Any], steps: int, backend: str) -> dict[str, Any]:
    """Trains under the plan, compiled, on all ranks; returns errors (rank 0) and what torch did."""
    from torch._dynamo.utils import counters

    torch._inductor.config.compile_threads = 1
    torch.compile = functools.partial(COMPILE, backend=backend)
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors = equality.compare(rank, name, plan, steps, compile=True)
    graphs = counters["stats"]["unique_graphs"]
    breaks = sum(counters["graph_break"].values())
    program = equality.parallel(equality.CASES[name], plan, compile=True).program
    return {
        "errors": errors,
        "graphs": graphs,
        "breaks": breaks,
        "refused": [str(w.message) for w in caught if "torch.compile refuses" in str(w.message)],
        "regions": len(program.regions),
        "compiled": sum(map(len, program.regions)),
        "operators": program.operators,
    }


def result(name: str, seed: int, world: int, steps: int, backend: str) -> dict[str, Any]:
    """Returns the errors of a case on rank 0, and the counts of every rank."""

    plan = plan_of(name, world, seed)
    found = {"family": name, "seed": seed, "micro_batches": plan["micro_batches"]}
    ranks = Ranks(world, inherit=True)
    try:
        by_rank = ranks(compare, name, plan, steps, backend)
    except AssertionError as error:
        return {**found, "failed": str(error)[-4000:]}
    ranks.stop()
    errors = by_rank[0].pop("errors")
    found |= {kind: getattr(errors, kind) for kind in KINDS}
    return {**found, "worst": errors.worst, "ranks": by_rank}
