"""The two parts of a member's backward: gradients of inputs, I, and gradients of weights, W.

Backward is priced as a whole, measured or modelled (`group_work.py`). For an operator whose
backward is split (`graph/split_backward.py`), each part is also priced alone, by its own product in
the measured tables or by the roofline,

    I    reads the output's gradient and the weight, writes the gradient of data
    W    reads the output's gradient and data, writes the gradients of weight and bias

and the whole is divided in this ratio, so that I + W equals the whole backward. Both parts read the
output's gradient, and so do the two kernels of a whole backward.
"""

from __future__ import annotations

import numpy as np

from shardwise.cost.group_work import GroupWork
from shardwise.cost.passes import Work
from shardwise.cost.products import operands
from shardwise.graph.split_backward import Ports, arguments_of, split_ports
from shardwise.sharding.coarsen import Member
from shardwise.sharding.layout import Floats
from shardwise.sharding.pattern import Patterns


def waiting_ports(member: Member, patterns: Patterns) -> Ports | None:
    """Returns the ports of a member whose gradients belong to W, or None."""
    op = member.operator
    ports = split_ports(op, arguments_of(op), patterns.graph.tensors)
    if ports is None or not patterns.has_backward(member):
        return None
    trained = tuple(p for p in ports.weights if patterns.carries_gradient(op.inputs[p]))
    return Ports(ports.data, trained) if trained else None


def weights_share(work: GroupWork, position: int) -> Floats:
    """Returns the share of W in a member's backward under each assignment, shape (n,)."""
    member, patterns = work.pattern.members[position], work.context.patterns
    op, ports = member.operator, waiting_ports(member, patterns)
    if ports is None:
        return np.zeros(work.count)
    if not patterns.carries_gradient(op.inputs[ports.data]):
        return np.ones(work.count)
    forward, backward = work.work_of(position)
    rounded = work.rounded(position)
    if rounded is not None:
        return np.asarray(rounded.weights_s / np.maximum(rounded.backward_s, 1e-30))
    product, places = work.product(position, forward.flops, backward.dtype), operands(op)
    if product is not None and places is not None:
        of_data = tuple(place == ports.data for place in places)
        inputs_s, weights_s = (
            product.times(work.device, backward.dtype, needed)
            for needed in (of_data, tuple(not one for one in of_data))
        )
    else:
        inputs_s, weights_s = _by_roofline(work, position, ports, backward)
    return np.asarray(weights_s / np.maximum(inputs_s + weights_s, 1e-30))


def _by_roofline(
    work: GroupWork, position: int, ports: Ports, backward: Work
) -> tuple[Floats, Floats]:
    """Returns the seconds of I and W. Each has one of the two products, of as many operations."""
    op = work.pattern.members[position].operator

    def size(port: int) -> Floats:
        return work.local_bytes(op.inputs[port], work.inputs[position][port][0])

    gradient = work.local_bytes(op.outputs[0], work.outputs[position][0][0])
    data, weights = size(ports.data), [size(port) for port in ports.weights]
    flops, roofline = backward.flops / 2.0, work.device.roofline_times
    inputs_s = roofline(flops, gradient + weights[0] + data, backward.dtype)
    weights_s = roofline(flops, gradient + data + sum(weights), backward.dtype)
    return inputs_s, weights_s
