"""The costs of one configuration, operator by operator."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from msgspec import UNSET, UnsetType

from shardwise.cost.context import CostContext
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.group_work import GroupWork
from shardwise.cost.terms import GroupTerms
from shardwise.hardware.sources import SOURCES
from shardwise.sharding.pattern import GroupPattern


@dataclass
class OperatorCost:
    """One operator of a plan, on one device, for one step: bytes and seconds.

    `compute_from` names the source of each direction of its compute time, such as
    {"forward": "measured", "backward": "interpolated", "update": "modelled"}. `rounding_s` is what
    of it rounds to 8 or 4 bits in forward and backward, where that is done.
    """

    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    compute_from: dict[str, str] = field(default_factory=dict)
    rounding_s: float | UnsetType = UNSET


def operator_costs(
    context: CostContext, pattern: GroupPattern, costs: GroupCosts, choice: int
) -> list[OperatorCost]:
    """Returns the costs of a group's operators, in their order, under configuration `choice`.

    They add up to the group's. A parameter, its update and its synchronisation belong to the
    operator that reads it first; a kept activation to the operator that makes it, a kept input to
    the one that reads it first; forward that runs again, and its communication, to the operator
    that runs.
    """
    work = GroupWork(
        context, pattern, costs.assignment[choice][None, :], costs.proportion[choice][None]
    )
    terms = GroupTerms(work)
    recomputed = bool(costs.recompute[choice])
    batches = terms.micro_batches
    runs, reads = (batches * (1 + (again & recomputed)) for again in (terms.computes, terms.reads))
    member_costs = [
        OperatorCost(compute_s=float(compute_s), communication_s=float(communication_s))
        for compute_s, communication_s in zip(
            runs * terms.compute.forward_s[0] + batches * terms.compute.backward_s[0],
            reads * terms.communication.forward_s[0] + batches * terms.communication.backward_s[0],
            strict=True,
        )
    ]
    for direction, seconds, codes in (
        ("forward", terms.compute.forward_s[0], terms.compute.forward_codes[0]),
        ("backward", terms.compute.backward_s[0], terms.compute.backward_codes[0]),
    ):
        for m in np.flatnonzero(seconds > 0).tolist():
            member_costs[m].compute_from[direction] = SOURCES[codes[m]]
    for m, seconds in enumerate(terms.loading_s[0]):
        member_costs[m].communication_s += float(batches * seconds)
    maker, reader = _makers_and_readers(work)
    parameters = terms.parameters(
        int(costs.zero[choice]), int(costs.gradient_sum[choice]), costs.zero_axes[choice][None]
    )
    memory = parameters.weight_bytes + parameters.gradient_bytes + parameters.state_bytes
    sync_s = parameters.sync_s(batches)
    for p, name in enumerate(pattern.parameters):
        cost = member_costs[reader[name]]
        cost.parameter_bytes += float(memory[0, p])
        cost.compute_s += float(parameters.update_s[0, p])
        if parameters.update_s[0, p] > 0:
            cost.compute_from["update"] = SOURCES[parameters.update_codes[0, p]]
        cost.communication_s += float(sync_s[0, p])
    for name in work.kept_still if recomputed else pattern.kept:
        owner = maker.get(name, reader.get(name, 0))
        member_costs[owner].activation_bytes += float(np.sum(work.kept_bytes((name,))))
    for m, cost in enumerate(member_costs):
        rounded = work.rounded(m)
        if rounded is not None:
            forward_s, backward_s = (float(seconds[0]) for seconds in rounded.rounding_s)
            cost.rounding_s = float(runs[m]) * forward_s + batches * backward_s
        if not (recomputed and terms.reads[m]):
            cost.activation_bytes += float(work.own_bytes(m)[0])
    return member_costs


def _makers_and_readers(work: GroupWork) -> tuple[dict[str, int], dict[str, int]]:
    """Returns per tensor the member that makes it and the member that reads it first."""
    maker: dict[str, int] = {}
    reader: dict[str, int] = {}
    for m, member in enumerate(work.pattern.members):
        for name in member.operator.inputs:
            reader.setdefault(name, m)
        for name in member.operator.outputs:
            maker[name] = m
    return maker, reader
