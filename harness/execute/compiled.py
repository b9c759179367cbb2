"""Compiled plans against one device, as JSON lines; run as a process of its own, as sweep.py is.

    python -m harness.execute.compiled --cases MLP:0,GPT-2:2 [--ranks 2] [--backend aot_eager]

A case is family:seed; `ResNet float64` is a family in float64. `aot_eager` traces what is compiled,
forward and backward, and runs what it traced without writing C++, which takes seconds for every
region.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch._inductor.compile_fx  # here once, not in every rank
import torch._inductor.config
from torch._dynamo.utils import counters

from harness.execute import equality
from harness.execute.bounds import KINDS
from harness.execute.ranks import Ranks

ZERO = ((0,), (1,), (2,), (0, 1, 2))


def plan_of(name: str, world: int, seed: int) -> dict[str, Any]:
    """Returns one seed's plan of a family, which recomputes and rebuilds nothing."""
    strategies = equality.CASES[name].strategies
    zero = ZERO[seed % len(ZERO)]
    return strategies.plan(world, seed, zero=zero, recompute="never", reuse=False)


def compare(rank: int, name: str, plan: dict[str, Any], steps: int) -> dict[str, Any]:
    """Trains under the plan, compiled, on all ranks; returns errors (rank 0) and what torch did."""
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


def results(cases: list[tuple[str, int]], world: int, steps: int) -> Iterator[dict[str, Any]]:
    """Yields the result of every case: the errors on rank 0, and the counts of every rank."""
    for name, _ in cases:
        if name not in equality.CASES:
            family = name.removesuffix(" float64")
            dtype = torch.float32 if family == name else torch.float64
            equality.CASES[name] = equality.Case.of(family, dtype)
    ranks = Ranks(world, inherit=True)
    for name, seed in cases:
        plan = plan_of(name, world, seed)
        result: dict[str, Any] = {"family": name, "seed": seed}
        result["micro_batches"] = plan["micro_batches"]
        try:
            by_rank = ranks(compare, name, plan, steps)
        except AssertionError as error:
            yield {**result, "failed": str(error)[-4000:]}
            continue
        errors = by_rank[0].pop("errors")
        result |= {kind: getattr(errors, kind) for kind in KINDS}
        yield {**result, "worst": errors.worst, "ranks": by_rank}
    ranks.stop()


def main() -> None:
    """Prints one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--backend", default="inductor")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    torch.compile = functools.partial(torch.compile, backend=given.backend)
    cases = [(name, int(seed)) for name, seed in (c.split(":") for c in given.cases.split(","))]
    for result in results(cases, given.ranks, given.steps):
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
