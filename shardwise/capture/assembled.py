"""Tensors that a model allocates and then fills part by part, as what they are: concatenations.

transformers writes the keys of latent attention so:

    key = kv.new_empty(…)
    key[..., :128].copy_(k_nope)
    key[..., 128:].copy_(k_rot)

Export makes of each write a copy onto a slice of the empty tensor and a scatter of the result. The
empty tensor would be a constant that every device holds whole, and each scatter a pass over all of
it; what comes out is `cat((k_nope, k_rot), -1)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.graph.graph import Operator, Tensor

EMPTY, COPY = "aten.empty.memory_format", "aten.copy.default"
SCATTER, CONCATENATE = "aten.slice_scatter.default", "aten.cat.default"


@dataclass(frozen=True)
class _Part:
    """What is written at start ≤ index < end of a dimension."""

    dim: int
    start: int
    end: int
    source: str


def assembled(operators: Sequence[Operator], tensors: Mapping[str, Tensor]) -> list[Operator]:
    """Returns the operators with each scatter that completes an empty tensor replaced by the
    concatenation of what was written.

    The parts have to be slices of one dimension that cover it without overlap. Operators that
    nothing needs any more stay.
    """
    maker = {name: op for op in operators for name in op.outputs}
    return [_concatenation(op, maker, tensors) or op for op in operators]


def _concatenation(
    last: Operator, maker: Mapping[str, Operator], tensors: Mapping[str, Tensor]
) -> Operator | None:
    """Returns the concatenation that makes the result of a scatter; None for any other operator."""
    if last.kind != SCATTER:
        return None
    parts = sorted(_parts(last, maker, tensors), key=lambda part: part.start)
    dims = {part.dim for part in parts}
    ends = [0, *(part.end for part in parts)]
    if len(parts) < 2 or len(dims) > 1 or [part.start for part in parts] != ends[:-1]:
        return None
    (dim,) = dims
    if ends[-1] != tensors[last.outputs[0]].shape[dim]:
        return None
    names = [f"tensors.{place}" for place in range(len(parts))]
    return replace(
        last,
        kind=CONCATENATE,
        inputs=tuple(part.source for part in parts),
        attributes={"dim": dim, "tensor_arguments": names},
    )


def _parts(
    last: Operator, maker: Mapping[str, Operator], tensors: Mapping[str, Tensor]
) -> Iterator[_Part]:
    """Yields what was written into an empty tensor up to a scatter; nothing where that is not known
    or reads what was there before."""
    found: list[_Part] = []
    op: Operator | None = last
    while op is not None and op.kind == SCATTER:
        part = _part(op, maker, tensors)
        if part is None:
            return
        found.append(part)
        op = maker.get(op.inputs[0])
    if op is not None and op.kind == EMPTY:
        yield from found


def _part(
    scatter: Operator, maker: Mapping[str, Operator], tensors: Mapping[str, Tensor]
) -> _Part | None:
    """Returns what a scatter writes; None for one with steps, and where the source is of another
    shape or dtype than what it is written over."""
    whole, source = (tensors[name] for name in scatter.inputs)
    given = scatter.attributes
    dim = int(given.get("dim") or 0) % len(whole.shape)
    extent = whole.shape[dim]
    start, end, _ = slice(given.get("start"), given.get("end")).indices(extent)
    copy = maker.get(source.name)
    if copy is not None and copy.kind == COPY:
        # What is copied onto a slice does not depend on what was there.
        source = tensors[copy.inputs[1]]
    taken = (*whole.shape[:dim], end - start, *whole.shape[dim + 1 :])
    if given.get("step", 1) != 1 or (source.shape, source.dtype) != (taken, whole.dtype):
        return None
    return _Part(dim, start, end, source.name)
