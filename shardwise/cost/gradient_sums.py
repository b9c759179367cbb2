"""Ways to sum the gradients of replicas other than a collective.

Only devices of several kinds have others: parameter servers and uneven shards
(`cost/mixed/sums.py`).
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
    """A kind of sum at one device. `masks` (n,) are the axes that repeat a parameter, `proportions`
    (n,) the devices' shares."""

    @property
    def name(self) -> str:
        """Its name in answers."""
        ...

    @property
    def stages(self) -> Sequence[int]:
        """The ZeRO stages that it supports."""
        ...

    def reaches(self, masks: NDArray[np.int64], proportions: NDArray[np.int8]) -> NDArray[np.bool_]:
        """Returns where the replicas make this differ from a collective, (n,)."""
        ...

    def elements(
        self, whole: Floats, masks: NDArray[np.int64], proportions: NDArray[np.int8]
    ) -> Floats:
        """Returns this device's shard of a parameter of `whole` elements, (n,)."""
        ...

    def one_way_s(
        self, sizes_bytes: Floats, masks: NDArray[np.int64], proportions: NDArray[np.int8]
    ) -> Floats:
        """Returns the time for which this device's links are busy with moving all gradients to
        their shards, or shards to all replicas, (n,) seconds."""
        ...
