"""How the gradients of replicas are summed where a collective is not the only way.

Devices of several kinds have parameter servers and uneven shards besides (`cost/mixed/sums.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.sharding.layout import Floats

COLLECTIVE = 0
"""The first kind of gradient sum of a mesh: collectives over all replicas, with even shards."""


class GradientSum(Protocol):
    """A kind of sum, as one of the devices sees it. `masks` (n,) are the axes that repeat a
    parameter, `proportions` (n,) the devices' shares."""

    @property
    def name(self) -> str:
        """What answers call it."""
        ...

    @property
    def stages(self) -> Sequence[int]:
        """The ZeRO stages that it can have."""
        ...

    def reaches(self, masks: NDArray[np.int64], proportions: NDArray[np.int8]) -> NDArray[np.bool_]:
        """Returns where the replicas are such that this differs from a collective, (n,)."""
        ...

    def elements(
        self, whole: Floats, masks: NDArray[np.int64], proportions: NDArray[np.int8]
    ) -> Floats:
        """Returns this device's shard of a parameter of `whole` elements, (n,)."""
        ...

    def one_way_s(
        self, sizes_bytes: Floats, masks: NDArray[np.int64], proportions: NDArray[np.int8]
    ) -> Floats:
        """Returns how long this device's links are busy with bringing all gradients to their
        shards, or shards to all replicas, (n,) seconds."""
        ...
