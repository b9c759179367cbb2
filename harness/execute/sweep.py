"""Families × random strategies against one device; `main` prints them as JSON lines.

    python -m harness.execute.sweep --cases 4:0:2,8:2:3 [--steps 5] [--trace] [--mixed] [FAMILY…]

A case is ranks:first seed:seed after the last. With `--mixed` strategies are for four ranks of
several kinds, with `--order` operators run in another order than the program's. With `--device
cuda` all ranks compute on one GPU, and their collectives pass through the host's memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

from harness.execute import equality
from harness.execute.bounds import TOLERANCE
from harness.execute.families import TOYS
from harness.execute.keeper import shared_ranks
from harness.execute.mixed import MixedStrategies
from harness.execute.orders import PROGRAM
from harness.execute.ranks import Ranks

TRACED = 12
CPU = "cpu"


@cache
def mixed_strategies(name: str) -> MixedStrategies:
    """Returns the strategies of a family for four ranks of several kinds."""
    case = equality.case_of(name)
    return MixedStrategies(case.captured.graph, case.micro_batches)


def sweep(
    names: Sequence[str],
    world: int,
    seeds: Sequence[int],
    steps: int,
    *,
    trace: bool = False,
    mixed: bool = False,
    order: str = PROGRAM,
    device: str = CPU,
) -> Iterator[dict[str, Any]]:
    """Yields a result per family and seed; a case that fails does not end the sweep."""
    for name in names:
        equality.case_of(name)
    for seed in seeds:
        for name in names:
            if mixed:
                plan = mixed_strategies(name).plan(seed, order)
            else:
                plan = equality.case_of(name).strategies.plan(world, seed, order=order)
            # Tracing gathers tensors of one proportion, on CPUs.
            traced = trace and not mixed and device == CPU
            yield _one(_ranks(world, device, names), name, seed, plan, steps, traced, device)


def _ranks(world: int, device: str, names: Sequence[str]) -> Ranks:
    return shared_ranks(world, names) if device == CPU else _spawned(world)


@cache
def _spawned(world: int) -> Ranks:
    return Ranks(world, spawn=True)


def _compared(
    ranks: Ranks, name: str, plan: dict[str, Any], steps: int, device: str
) -> equality.Errors:
    if device == CPU:
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
    graph = equality.case_of(double).captured.graph
    if {op.name for op in graph.operators} != set(plan["order"]):
        return None
    ranks = _ranks(world, device, [double])
    return float(_compared(ranks, double, plan, steps, device).largest)


def results(*arguments: str) -> Iterator[dict[str, Any]]:
    """Yields a line for each case that the arguments of the command ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(TOYS))
    parser.add_argument("--cases", default="4:0:2", help="ranks:first:last, the last not included")
    parser.add_argument("--steps", type=int, default=equality.STEPS)
    parser.add_argument("--trace", action="store_true", help="name the first operators that differ")
    parser.add_argument("--mixed", action="store_true", help="strategies of several kinds")
    parser.add_argument("--device", choices=(CPU, "cpu:0", "cuda"), default=CPU)
    parser.add_argument("--order", default=PROGRAM, help="of execution: rank, fifo, …, random")
    given = parser.parse_args(arguments)
    for case in given.cases.split(","):
        world, first, last = map(int, case.split(":"))
        yield from sweep(
            given.families,
            world,
            range(first, last),
            given.steps,
            trace=given.trace,
            mixed=given.mixed,
            order=given.order,
            device=given.device,
        )


def listed(*arguments: str) -> list[dict[str, Any]]:
    """Returns `results` as a list, for a keeper."""
    return [*results(*arguments)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in results(*sys.argv[1:]):
        print(json.dumps(line), flush=True)
