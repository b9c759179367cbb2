"""The largest or smallest element of a share, which may be empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch


def extreme(x: Any, dims: int | Sequence[int], which: Literal["max", "min"]) -> Any:
    """Reduces along `dims`, kept with extent 1; an empty share gives what loses to any other."""
    along = {d % x.dim() for d in ((dims,) if isinstance(dims, int) else dims)}
    if all(x.shape[d] for d in along):
        return x.amax(dims, keepdim=True) if which == "max" else x.amin(dims, keepdim=True)
    if x.dtype.is_floating_point:
        worst = float("-inf") if which == "max" else float("inf")
    else:
        info = torch.iinfo(x.dtype)
        worst = info.min if which == "max" else info.max
    return x.new_full([1 if d in along else n for d, n in enumerate(x.shape)], worst)
