"""The stages of a plan as the executor reads them: which operators and tensors are in each.

The strategy of all stages is one of the whole model on the devices of one stage, so that it is read
like a plan. A tensor goes from stage to stage in the layout in which it is made; what its reader
needs is the reader's edge, as without stages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from msgspec.structs import replace

from shardwise.documents import Plan
from shardwise.documents.pipeline import check_stages
from shardwise.documents.plan import PlannedOperator
from shardwise.errors import BadInput
from shardwise.execute.stage import Stage
from shardwise.graph.graph import Graph
from shardwise.pipeline.actions import Schedule
from shardwise.pipeline.schedules import schedule

_COPY = re.compile(r"(.+) \(copy \d+\)", re.DOTALL)
"""How documents name the further copies of a parameter that is read at several ends of a model."""


def strategy_of(plan: Plan) -> Plan:
    """Returns a plan in which each parameter has one name."""
    groups = [replace(g, operators=[_original(op) for op in g.operators]) for g in plan.groups]
    return replace(plan, groups=groups)


def _original(op: PlannedOperator) -> PlannedOperator:
    names = {name: _COPY.fullmatch(name) for name in op.inputs}
    if not any(names.values()):
        return op
    inputs = {m[1] if (m := names[n]) else n: layout for n, layout in op.inputs.items()}
    return replace(op, inputs=inputs)


def require_sound(document: Plan) -> None:
    """Raises `BadInput` for a document whose stages cannot be run as it says."""
    check_stages(document)
    placement = schedule_of(document).placement
    devices = prod(axis.size for axis in document.stage_mesh.axes)
    for number, stage in enumerate(document.stages):
        first = placement.rank_of(number) * devices
        if (stage.first_device, stage.devices) != (first, devices):
            raise BadInput(
                f"has the devices {stage.first_device} to {stage.first_device + stage.devices - 1}",
                field=f"stages[{number}]",
                expected=f"{first} to {first + devices - 1}, as stage_mesh has",
            )
    if document.gpus != devices * placement.ranks:
        raise BadInput(
            f"{document.gpus} devices for {len(document.stages)} stages of {devices}",
            field="gpus",
            expected=str(devices * placement.ranks),
        )
    groups = sorted(group for stage in document.stages for group in stage.groups)
    if groups != list(range(len(document.groups))):
        raise BadInput(
            "have not each group once", field="stages.groups", expected="each in one stage"
        )


def schedule_of(document: Plan) -> Schedule:
    """Returns the schedule of a document, with the ranks as its groups of devices.

    Raises `BadInput` for numbers of stages and micro-batches that it does not allow.
    """
    return schedule(
        document.pipeline_schedule,
        ranks=document.ranks,
        micro_batches=document.micro_batches,
        stages_per_rank=document.stages_per_rank or 1,
    )


def stages_of(document: Plan, graph: Graph) -> Stages:
    """Returns the stages of a document on its graph.

    Raises `BadInput` where a tensor would go back, or where the loss is not made by the last stage.
    """
    stage_of = {
        op.name: number
        for number, stage in enumerate(document.stages)
        for group in stage.groups
        for op in document.groups[group].operators
    }
    made_in, last_read = _spans(graph, stage_of)
    last = len(document.stages) - 1
    losses = [t.name for t in graph.tensors.values() if t.role == "output"]
    for name in losses:
        if made_in.get(name) != last:
            raise BadInput(
                f"{name}, what the module returns, is not made in the last stage",
                field="stages.groups",
                expected=f"it in stage {last}",
            )
    read: list[dict[str, None]] = [{} for _ in document.stages]
    for op in graph.operators:
        for name in op.inputs:
            if op.name in stage_of and made_in.get(name, last) < stage_of[op.name]:
                read[stage_of[op.name]][name] = None
    stages = []
    for number in range(len(document.stages)):
        stages.append(
            Stage(
                number,
                frozenset(name for name, at in stage_of.items() if at == number),
                tuple(n for n in made_in if n in read[number]),
                tuple(n for n, at in made_in.items() if at == number < last_read.get(n, at)),
            )
        )
    cuts = tuple(
        tuple(n for n, at in made_in.items() if at <= cut < last_read.get(n, at))
        for cut in range(last)
    )
    return Stages(tuple(stages), cuts, _shared(graph, stage_of))


@dataclass(frozen=True)
class Stages:
    """The stages of a pipeline on its graph.

    `cuts[s]` are the tensors that go from stage s to s + 1, in the order of the graph; one that is
    read further on passes through the stages between. `shared` are the parameters that
    several stages read, with those stages.
    """

    stages: tuple[Stage, ...]
    cuts: tuple[tuple[str, ...], ...]
    shared: Mapping[str, tuple[int, ...]]


def _spans(graph: Graph, stage_of: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the stage that makes each tensor, and the last that reads it."""
    made_in: dict[str, int] = {}
    last_read: dict[str, int] = {}
    for op in graph.operators:
        if op.name not in stage_of:
            continue
        here = stage_of[op.name]
        for name in op.inputs:
            if made_in.get(name, -1) > here:
                raise BadInput(
                    f"{name} goes back from stage {made_in[name]} to stage {here}",
                    field="stages.groups",
                    expected="groups whose inputs come from their own or an earlier stage",
                )
            last_read[name] = max(here, last_read.get(name, here))
        made_in.update(dict.fromkeys(op.outputs, here))
    return made_in, last_read


def _shared(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    readers: dict[str, set[int]] = {}
    for op in graph.operators:
        for name in op.inputs:
            if graph.tensors[name].role == "parameter" and op.name in stage_of:
                readers.setdefault(name, set()).add(stage_of[op.name])
    return {name: tuple(sorted(s)) for name, s in sorted(readers.items()) if len(s) > 1}
