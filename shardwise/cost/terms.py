"""Every term of a group's cost, and how often a step pays it: the only definition of both."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.backward_parts import weights_share
from shardwise.cost.exchanges import communication
from shardwise.cost.group_work import GroupWork
from shardwise.cost.host import GroupHost
from shardwise.cost.parameters import Parameters, ParameterTerms, stages
from shardwise.cost.passes import Passes
from shardwise.cost.shares import by_source
from shardwise.sharding.layout import Floats


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
        """Seconds of the gradients of weights in a split backward, shape (n, M)."""
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
        """The host's launch times of the group's work."""
        return GroupHost(self.work)

    @cached_property
    def computes(self) -> NDArray[np.bool_]:
        """The members that compute again when forward is recomputed."""
        rerun, members = self.work.context.rerun, self.work.pattern.members
        return np.array([rerun.computes(member) for member in members], dtype=bool)

    @cached_property
    def reads(self) -> NDArray[np.bool_]:
        """The members that read their inputs again when forward is recomputed."""
        rerun, members = self.work.context.rerun, self.work.pattern.members
        return np.array([rerun.takes_part(member) for member in members], dtype=bool)

    # One step, summed over the members, shape (n,)

    def passes_compute_s(self) -> Floats:
        """Returns the computation of forward and backward."""
        return self.micro_batches * self.compute.both_s

    def least_compute_s(self) -> float:
        """Returns the least computation of a step over all assignments and ZeRO stages."""
        return float((self.passes_compute_s() + self._update_s()).min())

    def least_passes_s(self) -> float:
        """Returns the least computation of a step's forward and backward over all assignments."""
        return float(self.passes_compute_s().min())

    def least_forward_s(self) -> float:
        """Returns the least computation of a step's forward over all assignments."""
        return self.micro_batches * float(self.compute.forward_s.sum(axis=1).min())

    def least_backward_s(self) -> float:
        """Returns the least computation of a step's backward over all assignments."""
        return self.micro_batches * float(self.compute.backward_s.sum(axis=1).min())

    def least_weights_s(self) -> float:
        """Returns the least computation of a step's weight gradients over all assignments."""
        return self.micro_batches * float(self.weights_s.sum(axis=1).min())

    def least_inputs_s(self) -> float:
        """Returns the least computation of the rest of a step's backward over all assignments."""
        inputs_s = self.compute.backward_s - self.weights_s
        return self.micro_batches * float(inputs_s.sum(axis=1).min())

    def least_update_s(self) -> float:
        """Returns the least computation of the update over all assignments and ZeRO stages."""
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
        """Returns the bytes kept despite recomputation: the graph's inputs, and results of members
        that do not run again."""
        still = np.flatnonzero(~self.reads).tolist()
        return self.work.kept_bytes(self.work.kept_still) + self._own_bytes(still)

    def _own_bytes(self, members: Iterable[int]) -> Floats:
        return sum((self.work.own_bytes(m) for m in members), np.zeros(self.work.count))
