"""What attributes of operators say about dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.tdl.language import NotCovered


def dim_of(dim: int, rank: int) -> int:
    """The dimension counted from the front; a negative one counts from the back."""
    if not -rank <= dim < rank:
        raise NotCovered(f"dimension {dim} of a tensor that has {rank}")
    return dim % rank


def dims_of(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    """Several dimensions, sorted; none given means all."""
    if dim is None or dim == [] or rank == 0:
        return list(range(rank))
    return sorted(dim_of(d, rank) for d in ([dim] if isinstance(dim, int) else dim))


def per_spatial_dim(values: Any, count: int, default: int) -> list[int]:
    """One number per spatial dimension, from one number for all, a list, or nothing."""
    if values is None or values == []:
        return [default] * count
    listed = [values] if isinstance(values, int) else list(values)
    return listed * count if len(listed) == 1 else listed
