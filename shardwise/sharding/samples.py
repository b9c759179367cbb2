"""Which variables of each group run over samples."""

from __future__ import annotations

from shardwise.sharding.batch import batch_dims, batch_variables
from shardwise.sharding.coarsen import Coarsened


def sample_variables(coarsened: Coarsened) -> tuple[tuple[int, ...], ...]:
    """Returns per group its variables that run over samples, in the order of its members."""
    groups = coarsened.groups
    semantics = {m.operator.name: m.semantics for g in groups for m in g.members}
    dims = batch_dims(coarsened.graph, semantics)
    return tuple(
        tuple(
            dict.fromkeys(
                m.variables[v]
                for m in group.members
                for v in sorted(batch_variables(m.operator, m.semantics, dims))
            )
        )
        for group in groups
    )
