"""The host's time of a step: what launching its operators and collectives takes (docs/costs.md).

    h = A (n_forward + n_backward [+ n_forward again]) t_operator
      + A (c_forward + c_backward [+ c_forward again]) t_collective + c_sync t_collective

A            micro-batches of a step
n            passes of operators that run at all; the backward of a product whose two factors need
             gradients counts twice
c            statistics, halos, moves and loading that take time on the devices
c_sync       gathers, scatters and reductions of the group's parameters, one each for all of them,
             as buckets have it
t            of the profile's host in eager PyTorch, times what the framework takes of it

Views are left out: their time is part of the operators beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.context import CostContext
from shardwise.cost.group_work import GroupWork
from shardwise.cost.parameters import ParameterTerms
from shardwise.cost.passes import Passes
from shardwise.graph.factors import FACTORS
from shardwise.sharding.coarsen import Member
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class Launching:
    """The host's seconds for one pass of an operator, and for one collective."""

    operator_s: float
    collective_s: float

    @classmethod
    def of(cls, context: CostContext) -> Launching:
        """Returns the launch times of a profile's host under the options' framework."""
        host, framework = context.hardware.host, context.options.launching
        if host is None:
            return cls(0.0, 0.0)
        return cls(host.operator_s * framework.operator, host.collective_s * framework.collective)

    @property
    def is_free(self) -> bool:
        """Whether launching takes no time."""
        return self.operator_s == self.collective_s == 0.0


class GroupHost:
    """The host's times of a group under each of its n assignments, in seconds of a step."""

    def __init__(self, work: GroupWork) -> None:
        self._work = work
        self._launching = Launching.of(work.context)
        self._micro_batches = work.context.micro_batches

    @cached_property
    def passes(self) -> tuple[int, int]:
        """Passes of all members' operators, forward and backward."""
        members = self._work.pattern.members
        return (
            sum(not is_view(member) for member in members),
            sum(backward_passes(self._work.context, member) for member in members),
        )

    @property
    def least_s(self) -> float:
        """A lower bound on any configuration: all operators, and no collective."""
        return self._micro_batches * sum(self.passes) * self._launching.operator_s

    def of_passes_s(self, communication: Passes, loading_s: Floats) -> Floats:
        """Returns the time of forward and backward, shape (n,)."""
        each = _number(loading_s) + _number(communication.forward_s)
        each += _number(communication.backward_s)
        return np.asarray(self.least_s + self._micro_batches * each * self._launching.collective_s)

    def of_recomputation_s(
        self, communication: Passes, computes: NDArray[np.bool_], reads: NDArray[np.bool_]
    ) -> Floats:
        """Returns the time of running forward again, shape (n,): of the members that
        compute, with the moves for those that read, both (M,)."""
        members = zip(self._work.pattern.members, computes, strict=True)
        number = sum(again and not is_view(member) for member, again in members)
        operators = number * self._launching.operator_s
        moves = _number(communication.forward_s[:, reads]) * self._launching.collective_s
        return np.asarray(self._micro_batches * (operators + moves))

    def of_parameters_s(self, terms: ParameterTerms) -> Floats:
        """Returns the time of keeping copies of the parameters equal, shape (n,)."""
        batches = self._micro_batches
        count = (
            batches * terms.gathers.max(initial=0) * _any(terms.gather_s)
            + terms.reduces * _any(terms.reduce_s)
            + _any(terms.finish_s)
            + _any(terms.spread_s)
        )
        return np.asarray(count * self._launching.collective_s)


def is_view(member: Member) -> bool:
    """Returns whether an operator computes nothing."""
    return member.semantics.category == "view"


def backward_passes(context: CostContext, member: Member) -> int:
    """Returns the number of passes of an operator's backward: one per factor of a product that
    needs its gradient, one for any other operator with a backward."""
    patterns, op = context.patterns, member.operator
    if is_view(member) or not patterns.has_backward(member):
        return 0
    if member.semantics.category != "heavy":
        return 1
    factors = FACTORS.get(op.kind, range(min(len(op.inputs), 2)))
    return max(sum(patterns.carries_gradient(op.inputs[place]) for place in factors), 1)


def _number(times_s: Floats) -> NDArray[np.int64]:
    """Returns the number of non-zero member times, (n, M)."""
    return np.asarray((times_s > 0.0).sum(axis=1))


def _any(times_s: Floats) -> NDArray[np.int64]:
    """Returns 1 where one of the parameters' times, (n, P), is not 0."""
    return np.asarray((times_s > 0.0).any(axis=1).astype(np.int64))
