"""Every term of a group's cost, and how often a step pays it: the one place where both are written.

For A micro-batches, member by member (M) and parameter by parameter (P),

    compute          A (forward + backward [+ forward again]), and the update
    communication    A (forward + backward + loading [+ forward again]), and synchronisation
    memory           weights, gradients, optimizer state; kept activations, or with recomputation
                     the inputs of the graph alone

The search sums terms over members (`GroupTerms`), a plan takes one configuration's member by member
(`operator_costs`), replay takes them as columns (`shardwise.replay.columns`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from shardwise.cost.backward_parts import weights_share
from shardwise.cost.exchanges import communication
from shardwise.cost.group_costs import CostContext, GroupCosts
from shardwise.cost.group_work import GroupWork
from shardwise.cost.host import GroupHost
from shardwise.cost.parameters import Parameters, ParameterTerms, stages
from shardwise.cost.passes import Passes
from shardwise.cost.shares import by_source
from shardwise.hardware.sources import SOURCES
from shardwise.sharding.layout import Floats
from shardwise.sharding.pattern import GroupPattern


class GroupTerms:
    """The cost terms of a group under each of n assignments, computed on first use."""

    def __init__(self, work: GroupWork) -> None:
        self.work = work
        self.micro_batches = work.context.micro_batches

    # One micro-batch, member by member

    @cached_property
    def compute(self) -> Passes:
        """Seconds of computation, shape (n, M) forward and backward."""
        return self.work.compute()

    @cached_property
    def weights_s(self) -> Floats:
        """Seconds of backward that are gradients of weights, where it is split, shape (n, M)."""
        shares = [weights_share(self.work, m) for m in range(len(self.work.pattern.members))]
        return np.asarray(self.compute.backward_s * np.stack(shares, axis=1))

    @cached_property
    def communication(self) -> Passes:
        """Seconds of statistics, halos and moves between members, shape (n, M) each way."""
        return communication(self.work)

    @cached_property
    def loading_s(self) -> Floats:
        """Seconds of re-scheduling the inputs of the graph, shape (n, M)."""
        return self.work.loading_s()

    def parameters(self, stage: int, gradient_sum: int, axes: NDArray[np.int64]) -> ParameterTerms:
        """Returns the terms of the parameters under a ZeRO stage and a kind of gradient sum over
        `axes` (bit masks, shape (n,))."""
        return self._parameters.terms(stage, gradient_sum, axes)

    @cached_property
    def _parameters(self) -> Parameters:
        return Parameters(self.work)

    @cached_property
    def host(self) -> GroupHost:
        """What the host takes to launch the group's work."""
        return GroupHost(self.work)

    @cached_property
    def computes(self) -> NDArray[np.bool_]:
        """Which members compute again where forward runs again."""
        rerun, members = self.work.context.rerun, self.work.pattern.members
        return np.array([rerun.computes(member) for member in members], dtype=bool)

    @cached_property
    def reads(self) -> NDArray[np.bool_]:
        """Which members read their inputs again where forward runs again."""
        rerun, members = self.work.context.rerun, self.work.pattern.members
        return np.array([rerun.takes_part(member) for member in members], dtype=bool)

    # One step, summed over the members, shape (n,)

    def passes_compute_s(self) -> Floats:
        """Returns the computation of forward and backward."""
        return self.micro_batches * self.compute.both_s

    def least_compute_s(self) -> float:
        """Returns the least that any assignment computes in a step, with any ZeRO stage."""
        return float((self.passes_compute_s() + self._update_s()).min())

    def least_passes_s(self) -> float:
        """Returns the least that forward and backward of a step compute under any assignment."""
        return float(self.passes_compute_s().min())

    def least_forward_s(self) -> float:
        """Returns the least that forward of a step computes under any assignment."""
        return self.micro_batches * float(self.compute.forward_s.sum(axis=1).min())

    def least_backward_s(self) -> float:
        """Returns the least that backward of a step computes under any assignment."""
        return self.micro_batches * float(self.compute.backward_s.sum(axis=1).min())

    def least_weights_s(self) -> float:
        """Returns the least that gradients of weights of a step compute under any assignment."""
        return self.micro_batches * float(self.weights_s.sum(axis=1).min())

    def least_inputs_s(self) -> float:
        """Returns the least that backward of a step computes besides, under any assignment."""
        inputs_s = self.compute.backward_s - self.weights_s
        return self.micro_batches * float(inputs_s.sum(axis=1).min())

    def least_update_s(self) -> float:
        """Returns the least that the update computes under any assignment, with any ZeRO stage."""
        return float(self._update_s().min())

    def _update_s(self) -> Floats:
        return self._parameters.least_update_s([axes for _, _, axes in stages(self.work)])

    def passes_communication_s(self) -> Floats:
        """Returns the communication of forward and backward, with loading."""
        one = self.communication.both_s + self.loading_s.sum(axis=1)
        return np.asarray(self.micro_batches * one)

    def rerun_compute_s(self) -> Floats:
        """Returns the computation of running forward again."""
        return np.asarray(self.micro_batches * self.compute.forward_s[:, self.computes].sum(axis=1))

    def rerun_communication_s(self) -> Floats:
        """Returns the communication of running forward again."""
        read_s = self.communication.forward_s[:, self.reads]
        return np.asarray(self.micro_batches * read_s.sum(axis=1))

    def passes_host_s(self) -> Floats:
        """Returns the host's time of forward and backward, with loading."""
        return self.host.of_passes_s(self.communication, self.loading_s)

    def rerun_host_s(self) -> Floats:
        """Returns the host's time of running forward again."""
        return self.host.of_recomputation_s(self.communication, self.computes, self.reads)

    def forward_by_source_s(self) -> Floats:
        """Returns the computation of forward by source, shape (n, 3)."""
        compute = self.compute
        return np.asarray(self.micro_batches * by_source(compute.forward_s, compute.forward_codes))

    def rerun_by_source_s(self) -> Floats:
        """Returns the computation of running forward again by source, shape (n, 3)."""
        passes, runs = self.compute, self.computes
        again = by_source(passes.forward_s[:, runs], passes.forward_codes[:, runs])
        return np.asarray(self.micro_batches * again)

    def backward_by_source_s(self) -> Floats:
        """Returns the computation of backward by source, shape (n, 3)."""
        compute = self.compute
        return np.asarray(
            self.micro_batches * by_source(compute.backward_s, compute.backward_codes)
        )

    def kept_bytes(self) -> Floats:
        """Returns the activations that backward needs, with copies of windows and rounded data."""
        members = range(len(self.work.pattern.members))
        return self.work.kept_bytes(self.work.pattern.kept) + self._own_bytes(members)

    def kept_still_bytes(self) -> Floats:
        """Returns what is kept although forward is run again: the inputs of the graph, and what
        members have made that do not run again."""
        still = np.flatnonzero(~self.reads).tolist()
        return self.work.kept_bytes(self.work.kept_still) + self._own_bytes(still)

    def _own_bytes(self, members: Iterable[int]) -> Floats:
        return sum((self.work.own_bytes(m) for m in members), np.zeros(self.work.count))


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
