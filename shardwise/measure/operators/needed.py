"""Which calls of operators the plans of a graph make: every (operator, local shapes) once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, log2
from typing import Any, Literal

import numpy as np

from shardwise.advise.assemble import costed
from shardwise.advise.chosen import together
from shardwise.advise.group_costs import CostContext, GroupCosts
from shardwise.advise.group_work import GroupWork
from shardwise.advise.operator_family import update_family
from shardwise.advise.options import Options, Progress, quiet
from shardwise.advise.pattern import GroupPattern
from shardwise.advise.search import Infeasible, Subject, search_all
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.graph import DTYPE_BYTES, Operator
from shardwise.hardware import Hardware, Mesh, TooFewDevices
from shardwise.hardware.operator_tables import OperatorFamily, Shapes
from shardwise.measure.operators.local_call import local_attributes

Of = Literal["frontier", "all"]
OF = ("frontier", "all")
"""The plans meant: those on the frontier, or every configuration that is searched."""

SMALLEST_UPDATE = 2**8
"""Elements: an update of fewer is all latency."""


@dataclass(frozen=True)
class OperatorItem:
    """One call to measure; two are the same where family and shapes are.

    `attributes` are those of the call on local shapes; `flops` and `moved_bytes` what the cost
    model counts for it; `expected_s` the roofline seconds of a step that such calls are expected
    to take (over the plans meant, on average).
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
    """The calls that plans of `graph` on `gpus` devices make on one device, dearest first.

    Forward and backward are calls of their own; views take no time and are none. Raises `BadInput`
    for an unknown `of` or a count below 1, `Infeasible` when the hardware has fewer devices.
    """
    if of not in OF:
        raise BadInput(f"{of!r}", field="operators-of", expected=", ".join(OF))
    options = options or Options()
    subject = Subject.of(graph)
    found = _Needed()
    if of == "all":
        _of_all(found, subject, hardware, gpus, options, progress)
    else:
        _of_frontier(found, subject, hardware, gpus, options, progress)
    _updates(found, graph, hardware, options)
    return found.items()


class _Needed:
    """Calls by what they are; expected seconds add up."""

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
    found: _Needed,
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
) -> None:
    if gpus < 1:
        raise BadInput(f"{gpus} GPUs", field="gpus", expected="a whole number of at least 1")
    try:
        mesh = Mesh.build(hardware, gpus)
    except TooFewDevices as reason:
        raise Infeasible(str(reason)) from None
    for count in options.micro_batches:
        variant = subject.variant(options, count)
        context, patterns, costs = costed(variant, hardware, mesh, options, progress, count)
        everything = [range(len(cost.time_s)) for cost in costs]
        weights = [dict.fromkeys(rows, 1.0 / len(rows)) for rows in everything]
        _of_choices(found, context, patterns, costs, weights)


def _of_frontier(
    found: _Needed,
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
) -> None:
    points = together(search_all(subject, hardware, gpus, options, progress))
    by_search = defaultdict(list)
    for chosen in points:
        by_search[id(chosen.found)].append(chosen)
    for of_one in by_search.values():
        problem = of_one[0].found.problem
        weights: list[dict[int, float]] = [defaultdict(float) for _ in problem.costs]
        for chosen in of_one:
            for group, choice in enumerate(chosen.found.solution.choices[chosen.point].tolist()):
                weights[group][choice] += 1.0 / len(points)
        _of_choices(found, problem.context, problem.patterns, problem.costs, weights)


def _of_choices(
    found: _Needed,
    context: CostContext,
    patterns: list[GroupPattern],
    costs: list[GroupCosts],
    weights: list[dict[int, float]],
) -> None:
    """The calls of groups under the choices that have a weight."""
    alike: dict[tuple[int, tuple[str, ...]], dict[int, float]] = {}
    example: dict[tuple[int, tuple[str, ...]], int] = {}
    for group, (pattern, cost) in enumerate(zip(patterns, costs, strict=True)):
        # Groups alike in cost may still read what lies otherwise.
        key = (id(cost), context.families.operands(pattern.group))
        example.setdefault(key, group)
        total = alike.setdefault(key, defaultdict(float))
        for choice, weight in weights[group].items():
            total[choice] += weight
    for key, total in alike.items():
        group = example[key]
        rows = np.array(list(total), dtype=np.int64)
        work = GroupWork(context, patterns[group], costs[group].assignment[rows])
        times = np.array(list(total.values()))
        again = costs[group].recompute[rows]
        _of_group(found, work, times * context.micro_batches, again)


def _of_group(found: _Needed, work: GroupWork, weight: Any, again: Any) -> None:
    """`weight` says how often a step has each assignment's calls; `again`: forward twice."""
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
            often = weight * (1 + again) if one.direction == "forward" else weight
            family = work.context.families.of(member, one.direction)
            for row in range(work.count):
                shapes = tuple(tuple(part.tolist()) for part in np.split(rows[row], ends))
                found.add(
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


def _updates(found: _Needed, graph: Graph, hardware: Hardware, options: Options) -> None:
    """Sizes from the smallest to the largest parameter, four times larger each."""
    device = hardware.devices[0]
    by_dtype: dict[str, list[int]] = defaultdict(list)
    for tensor in graph.tensors.values():
        if tensor.role == "parameter" and tensor.dtype == "float32" and tensor.differentiable:
            by_dtype[tensor.dtype].append(tensor.elements)
    if options.precision != "captured":
        return  # 16-bit parameters have master weights: no optimizer of torch's does that
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
            found.add(
                OperatorItem(
                    update_family(options.optimizer, dtype),
                    ((elements,),),
                    {},
                    0.0,
                    float(elements * each),
                    float(total) / len(sizes),
                )
            )
