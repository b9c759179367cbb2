"""Data loading: every rank gets its share of the batch, or all of it (TensorOpt §4.2).

An input arrives split by the batch over as many mesh axes as it has samples for, as in data
parallelism. The plan's steps move it where the strategy needs another layout. With devices of
several kinds it arrives with the shares of the groups that read it; of one that groups read with
different shares every rank needs the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardwise.errors import BadInput
from shardwise.execute.rank_mesh import Layout, RankMesh
from shardwise.graph.graph import Tensor

Argument = tuple[str, RankMesh]
"""An input of the graph, and the mesh with the shares in which it arrives."""


@dataclass(frozen=True)
class Arrival:
    """One input of a micro-batch: the tensor of the graph, and the layout in which it arrives with
    the shares of a mesh."""

    tensor: Tensor
    mesh: RankMesh
    layout: Layout

    @property
    def share(self) -> tuple[int, ...]:
        """The shape of this rank's part; without elements if it has none."""
        if not self.mesh.present:
            return (0,)
        return self.mesh.local_shape(self.tensor.shape, self.layout)


class Loading:
    """Cuts the arguments of one call into this rank's micro-batches."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        names: Sequence[str | None],
        micro_batches: int,
        device: torch.device,
        is_stage: bool = False,
    ) -> None:
        """`is_stage`: other ranks may read arguments that this one does not."""
        self._is_stage = is_stage
        self._parts = micro_batches
        self._device = device
        self._names = names
        self._arrivals: dict[str, list[Arrival]] = {}
        for arrival in arrivals:
            self._arrivals.setdefault(arrival.tensor.name, []).append(arrival)

    def micro_batches(self, leaves: Sequence[Any]) -> list[dict[Argument, torch.Tensor]]:
        """Returns what arrives for each micro-batch, given the flattened arguments.

        Raises `BadInput` for a tensor that is neither the whole batch nor this rank's share.
        """
        if len(leaves) != len(self._names):
            raise BadInput(
                f"got {len(leaves)} arguments", expected=f"{len(self._names)}, as in example_inputs"
            )
        parts: list[dict[Argument, torch.Tensor]] = [{} for _ in range(self._parts)]
        for name, leaf in zip(self._names, leaves, strict=True):
            for arrival in self._arrivals.get(name or "", ()):
                for part, tensor in zip(parts, self._of(arrival, leaf), strict=True):
                    part[arrival.tensor.name, arrival.mesh] = tensor
        return parts

    def share(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the flattened arguments with this rank's share of each, in its own memory.

        Arguments that no operator reads stay unchanged; in a stage tensors that it does not read
        are without elements. Raises `BadInput` like `micro_batches`.
        """
        parts = self.micro_batches(leaves)
        shares = list(leaves)
        for place, name in enumerate(self._names):
            arrivals = self._arrivals.get(name or "", ())
            if self._is_stage and not arrivals and isinstance(shares[place], torch.Tensor):
                shares[place] = torch.empty(0, dtype=shares[place].dtype, device=self._device)
            if len(arrivals) > 1:
                shares[place] = leaves[place].to(self._device, copy=True)
            for arrival in arrivals if len(arrivals) == 1 else ():
                dim = arrival.tensor.batch_dim
                mine = [part[arrival.tensor.name, arrival.mesh] for part in parts]
                together = dim is not None and len(mine) > 1 and arrival.mesh.present
                shares[place] = torch.cat(mine, dim=dim) if together else mine[0].clone()
        return shares

    def _of(self, arrival: Arrival, leaf: Any) -> list[torch.Tensor]:
        tensor, dim = arrival.tensor, arrival.tensor.batch_dim
        if not isinstance(leaf, torch.Tensor) or str(leaf.dtype) != f"torch.{tensor.dtype}":
            raise BadInput(
                f"is a {getattr(leaf, 'dtype', type(leaf).__name__)}",
                field=tensor.name,
                expected=f"a tensor of {tensor.dtype}",
            )
        leaf = leaf.to(self._device, non_blocking=True)
        mesh, share = arrival.mesh, arrival.share
        shape = tuple(leaf.shape)
        if not mesh.present and shape in (share, self._times(tensor.shape, dim)):
            return [leaf.new_empty(0)] * self._parts
        if shape == self._times(tensor.shape, dim):
            slices = mesh.local_slices(tensor.shape, arrival.layout)
            return [part[slices] for part in self._chunks(leaf, dim)]
        if shape == self._times(share, dim):
            return self._chunks(leaf, dim)
        raise BadInput(
            f"has the shape {list(shape)}",
            field=tensor.name,
            expected=f"{list(self._times(tensor.shape, dim))}, the whole batch, or "
            f"{list(self._times(share, dim))}, this rank's share",
        )

    def _times(self, shape: tuple[int, ...], dim: int | None) -> tuple[int, ...]:
        return tuple(n * self._parts if d == dim else n for d, n in enumerate(shape))

    def _chunks(self, leaf: torch.Tensor, dim: int | None) -> list[torch.Tensor]:
        if dim is None or self._parts == 1:
            return [leaf] * self._parts
        return list(leaf.chunk(self._parts, dim=dim))
