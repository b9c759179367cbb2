"""Families × random pipelines against one device; run by a keeper, or as a program.

    python -m harness.execute.pipeline_sweep --cases 4:2:0:2,2:4:0:3:interleaved:2 [FAMILY…]

A case is ranks:stages:first seed:seed after the last, and then :schedule:stages per rank where
that is not one of those with one stage on each, in turns. A family with " float64" behind its name
is in double precision.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from math import sqrt
from typing import Any

import torch

from harness.execute import equality
from harness.execute.equality import ADAM, Case, Errors
from harness.execute.keeper import shared_ranks
from harness.execute.pipelines import Pipelines
from harness.execute.ranks import Ranks
from shardwise import documents
from shardwise.execute.captured import smaller
from shardwise.execute.parameters import clip_grad_norm_
from shardwise.execute.pipeline.module import PipelineModule

FAMILIES = ("MLP", "GPT-2", "T5")
MICRO_BATCHES = (4, 2, 8)
"""Seeds take turns."""

HUGE = 1e9
"""A norm that clips nothing."""


def compare(rank: int, name: str, pipeline: dict[str, Any], steps: int) -> tuple[Errors, list[str]]:
    """Trains as the pipeline says on all ranks; returns the errors of this rank's stage, and the
    names of its parameters. The norm of the gradients counts as a loss."""
    case = equality.CASES[name]
    torch.set_num_threads(1)
    document = documents.read(pipeline, documents.Pipeline)
    with case.computing():
        model = PipelineModule(case.captured, document, "cpu")
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    wanted = equality.reference(case, document.micro_batches, steps)
    errors = Errors()
    parameters = model.store.parameters()
    with case.computing():
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(*case.model.args)
            loss.backward()
            norm = float(clip_grad_norm_(model.store, HUGE))
            whole = sqrt(
                sum(float(g.double().square().sum()) for g in wanted.gradients[step].values())
            )
            given = {
                n: model.store.whole(n, torch.zeros_like(p) if p.grad is None else p.grad)
                for n, p in parameters.items()
            }
            optimizer.step()
            after = {n: model.store.whole(n, p) for n, p in parameters.items()}
            right = wanted.losses[step]
            off = abs(float(loss.detach()) - right) / abs(right), abs(norm - whole) / whole
            errors.loss = max(errors.loss, *off)
            gradients = {n: wanted.gradients[step][n] for n in given}
            equality._take(errors, "gradient", given, gradients, step)
            updated = {n: wanted.parameters[step][n] for n in after}
            equality._take(errors, "parameter", after, updated, step)
    return errors, list(parameters)


def made_case(name: str, parts: Iterable[int]) -> Case:
    """Returns a family, captured whole and on each of these parts of the batch; once each."""
    case = equality.case_of(name)
    with case.computing():
        for count in parts:
            smaller(case.captured, count)
    return case


@cache
def drawn(name: str) -> Pipelines:
    """Returns random pipelines of a family."""
    return Pipelines(equality.case_of(name).captured.graph)


def ranks_for(world: int, names: Iterable[str], parts: Iterable[int]) -> Ranks:
    """Returns shared ranks that have these families on these parts of the batch."""
    parts = sorted(set(parts))
    for name in names:
        made_case(name, parts)
    ranks: Ranks = shared_ranks(world, product(names, parts))
    return ranks


def micro_batches_of(seed: int) -> int:
    """Returns the number of micro-batches of a seed's pipeline."""
    return MICRO_BATCHES[seed // 3 % len(MICRO_BATCHES)]


def one(ranks: Ranks, name: str, pipeline: dict[str, Any], steps: int) -> dict[str, Any]:
    """Returns a result: the largest errors of all ranks."""
    began = time.monotonic()
    result: dict[str, Any] = {
        "family": name,
        "pipeline": pipeline["id"],
        "ranks": ranks.world,
        "stages": [stage["units"] for stage in pipeline["stages"]],
        "schedule": pipeline["schedule"],
        "stages_per_rank": pipeline.get("stages_per_rank", 1),
        "micro_batches": pipeline["micro_batches"],
        "zero": sorted({group["zero"] for group in pipeline["groups"]}),
        "recompute": sum(group["recompute"] for group in pipeline["groups"]),
    }
    try:
        of_ranks = ranks(compare, name, pipeline, steps)
    except AssertionError as error:
        return {**result, "failed": str(error)[-4000:]}
    for kind in ("loss", "gradient", "parameter"):
        result[kind] = max(getattr(errors, kind) for errors, _ in of_ranks)
    result["worst"] = next((errors.worst for errors, _ in of_ranks if errors.worst), "")
    result["parameters"] = [len(names) for _, names in of_ranks]
    result["seconds"] = round(time.monotonic() - began, 2)
    return result


def results(*arguments: str) -> Iterator[dict[str, Any]]:
    """Yields a line for each case that the arguments of the program ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--cases", default="4:2:0:3")
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args(arguments)
    cases = []
    for case in given.cases.split(","):
        *numbers, schedule, each = (
            case.split(":") if case.count(":") > 3 else [*case.split(":"), "", 1]
        )
        world, stages, first, last = map(int, numbers)
        cases.append((world, stages, range(first, last), schedule, each))
    # Of all cases: ranks are forked again for each part that they lack.
    parts = {micro_batches_of(seed) for _, _, seeds, *_ in cases for seed in seeds}
    for world, stages, seeds, schedule, each in cases:
        ranks = ranks_for(world, given.families, parts)
        for seed in seeds:
            for name in given.families:
                pipeline = drawn(name).pipeline(
                    world,
                    stages,
                    seed,
                    schedule=schedule or None,
                    micro_batches=micro_batches_of(seed),
                    stages_per_rank=int(each),
                )
                yield one(ranks, name, pipeline, given.steps)


def listed(*arguments: str) -> list[dict[str, Any]]:
    """Returns `results` as a list, for a keeper."""
    return [*results(*arguments)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in results(*sys.argv[1:]):
        print(json.dumps(line), flush=True)
