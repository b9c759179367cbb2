"""Data loading: inputs arrive split by the batch (TensorOpt §4.2, Data loading).

Training data is loaded as for data parallelism under every strategy; inputs that a strategy needs
in another layout are re-scheduled, at a cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.space import SearchMesh
from shardwise.graph.graph import Tensor
from shardwise.sharding.layout import REPLICATE, shard_fits


def arriving(tensor: Tensor, mesh: SearchMesh) -> NDArray[np.int8]:
    """Returns the layout in which an input arrives: its batch over as many axes as its samples
    allow."""
    layout = np.full(len(mesh.axes), REPLICATE, dtype=np.int8)
    if tensor.batch_dim is None:
        return layout
    parts = 1
    for number, axis in enumerate(mesh.axes):
        if shard_fits(tensor.shape[tensor.batch_dim], parts * axis.size):
            parts *= axis.size
            layout[number] = tensor.batch_dim
    return layout
