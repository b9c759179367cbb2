"""Sampling units' actions from scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.policy.arithmetic import NumpyArithmetic
from shardwise.policy.features import Inputs
from shardwise.policy.network import scores
from shardwise.policy.task import Decisions
from shardwise.policy.weights import Policy
from shardwise.sharding.layout import Floats


def probabilities(policy: Policy, inputs: Inputs) -> Floats:
    """Returns the probability of every action for every unit, (units, actions), by numpy alone."""
    return softmax(scores(policy.weights, inputs, policy.size, NumpyArithmetic()))


def softmax(values: NDArray[np.float32]) -> Floats:
    """Returns shares along the last axis, in float64."""
    wide = values.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sampled(shares: Floats, count: int, draw: np.random.Generator) -> Decisions:
    """Returns the likeliest actions, then `count` samples, (count + 1, units)."""
    ends = np.cumsum(shares, axis=1)
    places = draw.random((count, len(shares), 1)) * ends[:, -1:]
    drawn = (places > ends[None]).sum(axis=2)
    return np.concatenate([shares.argmax(axis=1)[None], drawn])
