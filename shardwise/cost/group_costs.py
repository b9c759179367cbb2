"""Costs of one group under each of its configurations (TensorOpt Eq. 1, docs/costs.md).

    m(o, s) = parameters + gradients + optimizer state + activations kept for backward
    t(o, s) = A (t_forward + t_backward [+ t_forward again]) + t_update + t_sync

    A           micro-batches of a step
    t_forward   compute on local shapes (measured, interpolated or roofline), statistics of
                normalisations split along a reduced dimension, halo exchange, re-scheduling
                between members, and inputs, which arrive split by the batch (TensorOpt §4.2,
                Data loading)
    t_backward  the same for gradients; with recomputation forward is run again
    t_update    the optimizer's update of this device's shard
    t_sync      gradients of replicated parameters, as ZeRO has it (`parameters.py`)

A configuration is an assignment of mesh axes to the group's variables, a ZeRO stage with the axes
that it shards over, and whether forward is run again in backward instead of keeping activations.
Of configurations with the same layouts only those are searched that no other beats in memory and in
every term of its time.

All in bytes and seconds, for every configuration at once (arrays of length K).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.terms import GroupTerms
from shardwise.sharding.layout import Floats, Layouts


@dataclass(frozen=True)
class Port:
    """The layouts of one boundary tensor and of its gradient, shape (K, axes)."""

    forward: Layouts
    gradient: Layouts

    def take(self, rows: NDArray[np.int64]) -> Port:
        """Returns the port of these configurations."""
        return Port(self.forward[rows], self.gradient[rows])


@dataclass(frozen=True)
class GroupCosts:
    """The configurations of a group and their costs on one device (arrays of length K).

    `zero` is the ZeRO stage and `zero_axes` the bit mask of mesh axes that it shards over;
    `recompute`: forward runs again in backward. `compute_by_source_s` (K, 3) divides `compute_s`
    into measured, interpolated and modelled. Configurations with one number in `alike` have the
    same layouts and recomputation; `summed` marks those that no other of them beats in memory and
    summed time. `host_s` is the host's time of a step (`cost/host.py`). `proportion` and
    `gradient_sum` are numbers among those of the mesh (`cost/space.py`). `terms` are the terms of
    assignments, from which all this follows, and `base` each configuration's assignment.
    """

    assignment: NDArray[np.int8]
    zero: NDArray[np.int8]
    zero_axes: NDArray[np.int64]
    recompute: NDArray[np.bool_]
    parameter_bytes: Floats
    activation_bytes: Floats
    compute_s: Floats
    compute_by_source_s: Floats
    communication_s: Floats
    entries: tuple[Port, ...]
    exits: tuple[Port, ...]
    alike: NDArray[np.int64]
    summed: NDArray[np.bool_]
    host_s: Floats
    proportion: NDArray[np.int8]
    gradient_sum: NDArray[np.int8]
    terms: GroupTerms
    base: NDArray[np.int64]

    @property
    def memory_bytes(self) -> Floats:
        return self.parameter_bytes + self.activation_bytes

    @property
    def time_s(self) -> Floats:
        return self.compute_s + self.communication_s
