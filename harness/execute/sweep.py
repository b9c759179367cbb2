"""Families × random strategies against one device, as JSON lines; run as a process of its own.

    python -m harness.execute.sweep --cases 4:0:2,8:2:3 [--steps 5] [--trace] [--mixed] [FAMILY…]

A case is ranks:first seed:seed after the last. With `--mixed` strategies are for four ranks of
several kinds, with `--order` operators run in another order than the program's. With `--device
cuda` all ranks compute on one GPU, and their collectives pass through the host's memory.

A process of its own, because ranks are forked from it, which torch forbids once autograd has run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import torch

from harness.execute import equality
from harness.execute.bounds import TOLERANCE
from harness.execute.families import TOYS
from harness.execute.mixed import MixedStrategies
from harness.execute.orders import PROGRAM
from harness.execute.ranks import Ranks

TRACED = 12


def sweep(
    names: Sequence[str],
    world: int,
    seeds: Sequence[int],
    steps: int,
    *,
    trace: bool = False,
    mixed: bool = False,
    order: str = PROGRAM,
    device: str = "cpu",
) -> Iterator[dict[str, Any]]:
    """Yields a result per family and seed; a case that fails does not end the sweep."""
    for name in names:
        if name not in equality.CASES:
            equality.CASES[name] = equality.Case.of(name)
    several: dict[str, MixedStrategies] = {}
    for name in names if mixed else ():
        like = equality.CASES[name].strategies
        several[name] = MixedStrategies(like.graph, like.micro_batches)
    ranks = _ranks(world, device)
    for seed in seeds:
        for name in names:
            if mixed:
                plan = several[name].plan(seed, order)
            else:
                plan = equality.CASES[name].strategies.plan(world, seed, order=order)
            # Tracing gathers tensors of one proportion, on CPUs.
            traced = trace and not mixed and device == "cpu"
            yield _one(ranks, name, seed, plan, steps, traced, device)
    ranks.stop()


def _ranks(world: int, device: str) -> Ranks:
    return Ranks(world, inherit=True) if device == "cpu" else Ranks(world, spawn=True)


def _compared(
    ranks: Ranks, name: str, plan: dict[str, Any], steps: int, device: str
) -> equality.Errors:
    if device == "cpu":
        errors: equality.Errors = ranks(equality.compare, name, plan, steps)[0]
    else:
        errors = ranks(equality.compare_there, device, name, plan, steps)[0]
    return errors


def _one(
    ranks: Ranks, name: str, seed: int, plan: dict[str, Any], steps: int, trace: bool, device: str
) -> dict[str, Any]:
    start = time.monotonic()
    result: dict[str, Any] = {
        "family": name,
        "seed": seed,
        "ranks": ranks.world,
        "micro_batches": plan["micro_batches"],
        "steps": steps,
    }
    try:
        errors = _compared(ranks, name, plan, steps, device)
    except AssertionError as error:
        return {**result, "failed": str(error)[-4000:]}
    kinds = {op["name"]: op["kind"] for group in plan["groups"] for op in group["operators"]}
    result |= {
        "loss": errors.loss,
        "gradient": errors.gradient,
        "parameter": errors.parameter,
        "buffer": errors.buffer,
        "worst": errors.worst,
        "fallbacks": sorted({f"{kinds.get(op)}: {why}" for op, why in errors.fallbacks.items()}),
        "seconds": round(time.monotonic() - start, 2),
    }
    if not errors.largest <= TOLERANCE:
        result["float64"] = _in_double(name, plan, steps, ranks.world, device)
    if trace and not errors.largest <= TOLERANCE:
        result["first"] = ranks(equality.first_difference, name, plan)[0][:TRACED]
    return result


def _in_double(
    name: str, plan: dict[str, Any], steps: int, world: int, device: str
) -> float | None:
    """Returns the largest error of the same strategy in float64; None where that is another graph.

    In float32 a unit may lie within rounding of the kink of its ReLU, or a maximum of another one:
    then gradients jump though nothing is wrong. In float64 nothing lies that near.
    """
    double = f"{name}{equality.DOUBLE}"
    if double not in equality.CASES:
        equality.CASES[double] = equality.Case.of(name, torch.float64)
    double_graph = equality.CASES[double].captured.graph
    if {op.name for op in double_graph.operators} != set(plan["order"]):
        return None
    ranks = _ranks(world, device)
    try:
        return float(_compared(ranks, double, plan, steps, device).largest)
    finally:
        ranks.stop()


def main() -> None:
    """Prints one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(TOYS))
    parser.add_argument("--cases", default="4:0:2", help="ranks:first:last, the last not included")
    parser.add_argument("--steps", type=int, default=equality.STEPS)
    parser.add_argument("--trace", action="store_true", help="name the first operators that differ")
    parser.add_argument("--mixed", action="store_true", help="strategies of several kinds")
    parser.add_argument("--device", choices=("cpu", "cpu:0", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=inf, help="start no case after these")
    parser.add_argument("--order", default=PROGRAM, help="of execution: rank, fifo, …, random")
    given = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + given.seconds
    for case in given.cases.split(","):
        world, first, last = map(int, case.split(":"))
        seeds = range(first, last)
        for result in sweep(
            given.families,
            world,
            seeds,
            given.steps,
            trace=given.trace,
            mixed=given.mixed,
            order=given.order,
            device=given.device,
        ):
            print(json.dumps(result), flush=True)
            if time.monotonic() > end:
                return


if __name__ == "__main__":
    sys.exit(main())
