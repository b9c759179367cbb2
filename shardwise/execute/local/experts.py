"""Products with the matrices of experts, of which every rank has some, or some rows of each."""

from __future__ import annotations

from typing import Any

import torch

from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share
from shardwise.graph.graph import DTYPE_BYTES

ALIGNED_BYTES = 16


@form("shardwise.expert_linear.default")
def expert_linear(share: Share) -> Run:
    """Numbers experts from this rank's first; a copy whose expert is elsewhere is zero."""
    run = bind(share.target, share.arguments, share.attributes, 1)
    start = share.input_rows(1, 0).start
    if not start:
        return run
    return lambda x, w, experts: run(x, w, experts - start)


@form("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_mm(share: Share) -> Run:
    """Moves the ends of groups to where they fall among this rank's rows.

    Rows of other ranks' experts go to two experts of zeros, one before and one after the rank's
    own.
    """
    first, second = (len(share.inputs[i].shape) for i in (0, 1))
    if share.op.kind.startswith("aten."):
        _refuse_unaligned(share)
    run = bind(share.target, share.arguments, share.attributes, 1)
    if len(share.inputs) < 3:
        return run
    # Groups are stretches of the rows of the first matrix, or of the summed dimension.
    along = {(2, 3): share.input_rows(0, 0), (2, 2): share.input_rows(0, 1)}.get((first, second))
    if along is None:
        along = share.input_rows(1, 1)
    experts_of = {(2, 3): 1, (3, 2): 0}.get((first, second))
    experts = share.input_rows(experts_of, 0) if experts_of is not None else None
    split = experts is not None and bool(share.input_axes(experts_of or 0, 0))

    def local(a: Any, b: Any, ends: Any) -> list[Any]:
        ends = (ends - along.start).clamp(0, len(along))
        if not split or experts is None:
            return run(a, b, ends)
        before = ends[experts.start - 1 : experts.start] if experts.start else ends[:1] * 0
        own = ends[experts.start : experts.stop]
        stop = torch.full_like(before, len(along))
        given = [a, b]
        given[experts_of or 0] = _between_zeros(given[experts_of or 0])
        return run(*given, torch.cat([before, own, stop]))

    return local


def _refuse_unaligned(share: Share) -> None:
    """Raises NotLocal unless rows are multiples of 16 bytes, as torch's kernel requires."""
    for i in (0, 1):
        width = share.input_shape(i)[-1] * DTYPE_BYTES[share.inputs[i].dtype]
        if share.variables and width % ALIGNED_BYTES:
            raise NotLocal("rows of a share are not whole 16 bytes, as torch's kernel wants them")


def _between_zeros(matrices: Any) -> Any:
    zeros = matrices.new_zeros((1, *matrices.shape[1:]))
    return torch.cat([zeros, matrices, zeros])
