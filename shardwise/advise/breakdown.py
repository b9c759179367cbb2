"""What each operator of a group costs under the configuration chosen; the sum is the group's cost.

A parameter, its update and its synchronisation belong to the operator that reads it first; a kept
activation to the operator that makes it, a kept input to the one that reads it first; forward
that runs again and what it communicates to the operator that runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwise.advise.assemble import SearchProblem
from shardwise.advise.group_work import GroupWork
from shardwise.advise.parameters import parameter_terms
from shardwise.hardware.sources import SOURCES


@dataclass
class OperatorCost:
    """One operator of a plan, on one device, for one step: bytes and seconds.

    `compute_from` says what each direction of its compute time stands on, such as
    {"forward": "measured", "backward": "interpolated", "update": "modelled"}.
    """

    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    compute_from: dict[str, str] = field(default_factory=dict)


def operator_costs(problem: SearchProblem, group: int, choice: int) -> list[OperatorCost]:
    """The costs of a group's operators, in their order, under its configuration `choice`."""
    context, pattern, costs = problem.context, problem.patterns[group], problem.costs[group]
    work = GroupWork(context, pattern, costs.assignment[choice][None, :])
    again = bool(costs.recompute[choice])
    compute, communication = work.compute(), work.communication()
    batches = context.micro_batches
    forwards = batches * (2 if again else 1)
    found = []
    for m in range(len(pattern.members)):
        computing = forwards * compute.forward_s[0, m] + batches * compute.backward_s[0, m]
        talking = forwards * communication.forward_s[0, m]
        talking += batches * communication.backward_s[0, m]
        found.append(OperatorCost(compute_s=float(computing), communication_s=float(talking)))
        for direction, seconds, codes in (
            ("forward", compute.forward_s, compute.forward_codes),
            ("backward", compute.backward_s, compute.backward_codes),
        ):
            if seconds[0, m] > 0:
                found[-1].compute_from[direction] = SOURCES[codes[0, m]]
    for m, time in enumerate(work.loading_s()[0]):
        found[m].communication_s += float(batches * time)
    maker, reader = _makers_and_readers(work)
    terms = parameter_terms(work, int(costs.zero[choice]), costs.zero_axes[choice][None])
    memory = terms.weight_bytes + terms.gradient_bytes + terms.state_bytes
    for p, name in enumerate(pattern.parameters):
        cost = found[reader[name]]
        cost.parameter_bytes += float(memory[0, p])
        cost.compute_s += float(terms.update_s[0, p])
        if terms.update_s[0, p] > 0:
            cost.compute_from["update"] = SOURCES[terms.update_codes[0, p]]
        cost.communication_s += float(terms.sync_s(batches)[0, p])
    for name in pattern.loaded if again else pattern.kept:
        owner = maker.get(name, reader.get(name, 0))
        found[owner].activation_bytes += float(np.sum(work.kept_bytes((name,))))
    for m, port in () if again else work.kept_windows():
        found[m].activation_bytes += float(work.window_bytes(m, port)[0])
    return found


def _makers_and_readers(work: GroupWork) -> tuple[dict[str, int], dict[str, int]]:
    """Per tensor the member that makes it and the member that reads it first."""
    maker: dict[str, int] = {}
    reader: dict[str, int] = {}
    for m, member in enumerate(work.pattern.members):
        for name in member.operator.inputs:
            reader.setdefault(name, m)
        for name in member.operator.outputs:
            maker[name] = m
    return maker, reader
