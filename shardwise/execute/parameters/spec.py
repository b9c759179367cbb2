"""What a plan says about a parameter, and where that puts it on this rank.

With n elements in the local part, Z the axes that shard it under ZeRO and |Z| ranks along them
(cost/parameters.py), a shard has c = ceil(n / |Z|) elements of the flattened local part; the rank
with number z along Z owns elements z c to min((z + 1) c, n).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from shardwise.cost.mixed.proportions import cut
from shardwise.errors import BadInput, InternalError
from shardwise.execute.block_mesh import BLOCKS, support_of
from shardwise.execute.rank_mesh import Layout, RankMesh
from shardwise.sharding.layout import PARTIAL, REPLICATE


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter (or buffer) of a plan.

    `shape` is global; `dtype` is a torch dtype or its name; `layout` is that of the forward pass.
    `gradient` is the layout in which local autograd leaves its gradient (PARTIAL along axes that
    hold terms of a sum), None if it has none; one that is `frozen` has the layout but gets no
    gradient. `zero` is the ZeRO stage, over `zero_axes`
    (mesh axis numbers). A `buffer` is a tensor of the module that is not a parameter. `mesh` is
    that of the ranks that have it, by default the store's; `weights` are those of all blocks for
    what they own, None for equal shards.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | str
    layout: Layout
    gradient: Layout | None
    zero: int = 0
    zero_axes: tuple[int, ...] = ()
    buffer: bool = False
    frozen: bool = False
    mesh: RankMesh | None = None
    weights: tuple[int, ...] | None = None


class Placement:
    """Where a spec puts a parameter on this rank of the mesh.

    `repeated`: the axes along which gradients are summed, or would be; `sharding`: those that ZeRO
    shards over, of these and of the axes along which all ranks compute the same gradient;
    `beyond`: the others of `repeated`. Axes of one device are in none of them. `shares` are the
    elements that each rank along the repeated axes owns, where weights say so, else None. A rank
    that is not `present` has no elements.
    """

    def __init__(self, spec: ParameterSpec, mesh: RankMesh) -> None:
        mesh = spec.mesh or mesh
        _check(spec, mesh)
        self.spec = spec
        self.mesh = mesh
        self.name = spec.name
        self.dtype = _dtype(spec)
        self.present = mesh.present
        self.local_shape = mesh.local_shape(spec.shape, spec.layout) if mesh.present else (0,)
        self.elements = prod(self.local_shape)
        self.most_elements = prod(mesh.largest_shape(spec.shape, spec.layout))
        gradient = spec.gradient or ()
        self.repeated = tuple(
            a for a, state in enumerate(gradient) if state == PARTIAL and mesh.sizes[a] > 1
        )
        self.shares = self._shares()
        # Stages 1 and 2 share out gradients and states, which a frozen one does not have.
        sharded = spec.zero == 3 if spec.frozen else spec.zero > 0
        zero = spec.zero_axes if sharded else ()
        if self.shares is not None and zero:
            zero = self.repeated
        self.sharding = tuple(
            a
            for a, state in enumerate(gradient)
            if a in zero and state in (PARTIAL, REPLICATE) and mesh.sizes[a] > 1
        )
        self.beyond = tuple(a for a in self.repeated if a not in self.sharding)
        self.stage = spec.zero if self.sharding else 0
        self.parts = mesh.parts(self.sharding)
        if self.shares is not None and self.stage:
            self.own = self.shares[mesh.index(self.sharding)]
            self.shard = len(self.own)
            return
        self.shard = -(-self.elements // self.parts)
        start = min(self.shard * mesh.index(self.sharding), self.elements)
        self.own = range(start, min(start + self.shard, self.elements))

    def _shares(self) -> list[range] | None:
        """Returns by rank along the repeated axes what it owns; None for equal shards."""
        mesh, weights = self.mesh, self.spec.weights
        if weights is None or BLOCKS not in self.repeated:
            return None
        own = tuple(weights[block] for block in support_of(mesh))
        if not any(own):
            return None
        inside = mesh.parts([a for a in self.repeated if a != BLOCKS])
        ranges, start = [], 0
        for length in cut(self.elements, own):
            step = -(-length // inside)
            for place in range(inside):
                first, last = (min(step * n, length) for n in (place, place + 1))
                ranges.append(range(start + first, start + last))
            start += length
        return ranges

    @property
    def summed(self) -> tuple[int, ...]:
        """The axes that ZeRO shards over along which gradients are summed."""
        return tuple(a for a in self.sharding if a in self.repeated)

    @property
    def rows(self) -> list[int]:
        """The numbers of the shards that the ranks along `summed` own, in their order."""
        ranks = set(self.mesh.members(self.summed))
        return [n for n, rank in enumerate(self.mesh.members(self.sharding)) if rank in ranks]

    @property
    def owned(self) -> list[range]:
        """The shares of a parameter that has them."""
        if self.shares is None:
            raise InternalError(f"no weights say what each rank owns of {self.name}")
        return self.shares

    @property
    def carries_gradient(self) -> bool:
        """Whether autograd gives it a gradient."""
        return self.spec.gradient is not None and not self.spec.frozen

    @property
    def counts_here(self) -> bool:
        """Whether this rank is the first of those that own the same elements."""
        split = {a for a, state in enumerate(self.spec.layout) if state >= 0} | {*self.sharding}
        return all(c == 0 for a, c in enumerate(self.mesh.coordinates) if a not in split)

    def cut(self, full: torch.Tensor) -> torch.Tensor:
        """Returns the local part (a view) of the whole parameter."""
        if tuple(full.shape) != tuple(self.spec.shape):
            raise BadInput(
                f"has shape {list(full.shape)}", field=self.name, expected=f"{[*self.spec.shape]}"
            )
        if not self.present:
            return full.new_empty(0)
        return full[self.mesh.local_slices(self.spec.shape, self.spec.layout)]


def _dtype(spec: ParameterSpec) -> torch.dtype:
    dtype = getattr(torch, spec.dtype, None) if isinstance(spec.dtype, str) else spec.dtype
    if not isinstance(dtype, torch.dtype):
        raise BadInput(
            f"{spec.dtype!r} is not a dtype of torch",
            field=spec.name,
            expected="a floating-point dtype of torch",
        )
    return dtype


def _check(spec: ParameterSpec, mesh: RankMesh) -> None:
    axes = len(mesh.sizes)
    gradient = spec.layout if spec.gradient is None else spec.gradient
    if len(spec.layout) != axes or len(gradient) != axes:
        raise BadInput("has a layout for another mesh", field=spec.name, expected=f"{axes} axes")
    if spec.zero not in (0, 1, 2, 3) or any(not 0 <= a < axes for a in spec.zero_axes):
        raise BadInput(
            f"has ZeRO stage {spec.zero} over axes {[*spec.zero_axes]}",
            field=spec.name,
            expected=f"a stage of 0 to 3 and axes below {axes}",
        )
    if PARTIAL in spec.layout:
        raise BadInput("is a term of a sum", field=spec.name, expected="shards or replicas")
    for state, towards in zip(spec.layout, gradient, strict=True):
        if towards != state and not (state == REPLICATE and towards == PARTIAL):
            raise BadInput(
                f"is read in layout {spec.layout} but its gradient comes in {gradient}",
                field=spec.name,
                expected="the same layout, or terms of a sum where it is replicated",
            )
