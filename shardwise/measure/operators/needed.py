"""The operator calls that the plans of a graph make: every (operator, local shapes) once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, log2
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem, costed
from shardwise.cost.context import CostContext
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.group_work import GroupWork
from shardwise.cost.operator_family import update_family
from shardwise.cost.options import Options, Progress, quiet
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.graph import DTYPE_BYTES, Operator
from shardwise.hardware import Devices, Hardware, Mesh, TooFewDevices
from shardwise.hardware.operator_tables import OperatorFamily, Shapes
from shardwise.measure.operators.local_call import local_attributes
from shardwise.search.chosen import merge_frontiers
from shardwise.search.fitting import search_frontier
from shardwise.search.search import Infeasible, Subject
from shardwise.sharding.pattern import GroupPattern

Of = Literal["frontier", "all"]
OF = ("frontier", "all")
"""Which plans are meant: those on the frontier, or every configuration that is searched."""

SMALLEST_UPDATE = 2**8
"""In elements: a smaller update is all latency."""


@dataclass(frozen=True)
class OperatorItem:
    """One call to measure; two are equal if family and shapes are.

    `attributes` are those of the call on local shapes; `flops` and `moved_bytes` what the cost
    model counts for it; `expected_s` the roofline seconds that such calls are expected to take in a
    step (averaged over the plans meant).
    """

    family: OperatorFamily
    shapes: Shapes
    attributes: Mapping[str, Any] = field(compare=False, hash=False)
    flops: float = field(compare=False)
    moved_bytes: float = field(compare=False)
    expected_s: float = field(compare=False)


def needed_operators(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    options: Options | None = None,
    *,
    of: Of = "frontier",
    progress: Progress = quiet,
) -> tuple[OperatorItem, ...]:
    """Returns the calls that plans of `graph` on `gpus` devices make on one device, slowest first.

    Forward and backward are separate calls; views take no time and are left out. Raises `BadInput`
    for an unknown `of` or a count below 1, `Infeasible` if the hardware has fewer devices.
    """
    if of not in OF:
        raise BadInput(f"unknown plans {of!r}", field="operators-of", expected=", ".join(OF))
    options = options or Options()
    subject = Subject.of(graph)
    needed = _Needed()
    if of == "all":
        _of_all(needed, subject, hardware, gpus, options, progress)
    else:
        _of_frontier(needed, subject, hardware, gpus, options, progress)
    _updates(needed, graph, hardware, options)
    return needed.items()


def operators_of(problem: SearchProblem, choices: NDArray[np.int64]) -> tuple[OperatorItem, ...]:
    """Returns the calls that P strategies, `choices` (P, groups), make on a device that `problem`
    describes, updates included, slowest first.

    Of a cluster of several kinds it is the problem of one of its places.
    """
    needed = _Needed()
    weights = []
    for cost, chosen in zip(problem.costs, choices.T, strict=True):
        rows, often = np.unique(chosen, return_counts=True)
        has = problem.context.mesh.where_present(np.ones(len(rows)), cost.proportion[rows]) > 0
        weights.append(dict(zip(rows[has].tolist(), often[has] / len(choices), strict=True)))
    _of_choices(needed, problem.context, problem.patterns, problem.costs, weights)
    context = problem.context
    _updates(needed, context.graph, context.hardware, context.options)
    return needed.items()


class _Needed:
    """Calls without duplicates; their expected seconds add up."""

    def __init__(self) -> None:
        self._items: dict[OperatorItem, OperatorItem] = {}

    def add(self, item: OperatorItem) -> None:
        known = self._items.get(item)
        if known is not None:
            item = replace(known, expected_s=known.expected_s + item.expected_s)
        self._items[item] = item

    def items(self) -> tuple[OperatorItem, ...]:
        return tuple(sorted(self._items.values(), key=lambda item: -item.expected_s))


def _of_all(
    needed: _Needed,
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
) -> None:
    if gpus < 1:
        raise BadInput(f"got {gpus} GPUs", field="gpus", expected="a whole number of at least 1")
    try:
        mesh = Mesh.build(hardware, gpus)
    except TooFewDevices as reason:
        raise Infeasible(str(reason)) from None
    for count in options.counts(subject.graph.batch_size):
        variant = subject.variant(options, count)
        groups = costed(variant, hardware, mesh, options, progress, count)
        costs = groups.costs(progress)
        everything = [range(len(cost.time_s)) for cost in costs]
        weights = [dict.fromkeys(rows, 1.0 / len(rows)) for rows in everything]
        _of_choices(needed, groups.context, groups.patterns, costs, weights)


def _of_frontier(
    needed: _Needed,
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
) -> None:
    points = merge_frontiers(
        search_frontier(subject, hardware, Devices.alike(gpus), options, progress)
    )
    by_search = defaultdict(list)
    for chosen in points:
        by_search[id(chosen.search)].append(chosen)
    for of_one in by_search.values():
        problem = of_one[0].search.problem
        weights: list[dict[int, float]] = [defaultdict(float) for _ in problem.costs]
        for chosen in of_one:
            for group, choice in enumerate(chosen.search.solution.choices[chosen.point].tolist()):
                weights[group][choice] += 1.0 / len(points)
        _of_choices(needed, problem.context, problem.patterns, problem.costs, weights)


def _of_choices(
    needed: _Needed,
    context: CostContext,
    patterns: list[GroupPattern],
    costs: list[GroupCosts],
    weights: list[dict[int, float]],
) -> None:
    """Adds the calls of groups under the choices that have a weight."""
    alike: dict[tuple[int, tuple[str, ...]], dict[int, float]] = {}
    example: dict[tuple[int, tuple[str, ...]], int] = {}
    for group, (pattern, cost) in enumerate(zip(patterns, costs, strict=True)):
        # Groups alike in cost may still read tensors laid out differently.
        key = (id(cost), context.families.operands(pattern.group))
        example.setdefault(key, group)
        total = alike.setdefault(key, defaultdict(float))
        for choice, weight in weights[group].items():
            total[choice] += weight
    for key, total in alike.items():
        if not total:
            continue
        group = example[key]
        rows = np.array(list(total), dtype=np.int64)
        cost = costs[group]
        work = GroupWork(context, patterns[group], cost.assignment[rows], cost.proportion[rows])
        times = np.array(list(total.values()))
        recomputed = cost.recompute[rows]
        _of_group(needed, work, times * context.micro_batches, recomputed)


def _of_group(needed: _Needed, work: GroupWork, weight: Any, recomputed: Any) -> None:
    """Adds a group's calls, `weight` times a step; forward runs twice where `recomputed`."""
    tensors = work.tensors
    for position, member in enumerate(work.pattern.members):
        op = member.operator
        works = work.work_of(position)
        if not works:
            continue
        names = (*op.inputs, *op.outputs)
        ends = np.cumsum([len(tensors[name].shape) for name in names])[:-1]
        rows = work.local_shapes(position)
        for one in works:
            roofline = work.device.roofline_times(one.flops, one.moved_bytes, one.dtype)
            often = weight
            if one.direction == "forward":
                often = np.where(recomputed, 2 * weight, weight)
            family = work.context.families.of(member, one.direction)
            for row in range(work.count):
                shapes = tuple(tuple(part.tolist()) for part in np.split(rows[row], ends))
                needed.add(
                    OperatorItem(
                        family,
                        shapes,
                        _attributes(op, names, shapes, work),
                        float(one.flops[row]),
                        float(one.moved_bytes[row]),
                        float(roofline[row] * often[row]),
                    )
                )


def _attributes(
    op: Operator, names: tuple[str, ...], shapes: Shapes, work: GroupWork
) -> dict[str, Any]:
    whole = tuple(work.tensors[name].shape for name in names)
    return local_attributes(op, whole, shapes)


def _updates(needed: _Needed, graph: Graph, hardware: Hardware, options: Options) -> None:
    """Adds updates of sizes from the smallest to the largest parameter, four times larger each."""
    device = hardware.devices[0]
    by_dtype: dict[str, list[int]] = defaultdict(list)
    for tensor in graph.tensors.values():
        if tensor.role == "parameter" and tensor.dtype == "float32" and tensor.differentiable:
            by_dtype[tensor.dtype].append(tensor.elements)
    if options.precision != "captured":
        return  # 16-bit parameters have master weights, which no torch optimizer has
    for dtype, counts in by_dtype.items():
        item = DTYPE_BYTES[dtype]
        each = 3 * item + 2 * options.state_bytes_per_element(item)
        largest = max(counts)
        steps = max(ceil(log2(max(largest / SMALLEST_UPDATE, 1)) / 2), 0)
        sizes = sorted({largest, *(min(SMALLEST_UPDATE * 4**i, largest) for i in range(steps))})
        total = device.roofline_times(
            np.zeros(len(counts)), np.array(counts, dtype=np.float64) * each, dtype
        ).sum()
        for elements in sizes:
            needed.add(
                OperatorItem(
                    update_family(options.optimizer, dtype),
                    ((elements,),),
                    {},
                    0.0,
                    float(elements * each),
                    float(total) / len(sizes),
                )
            )
