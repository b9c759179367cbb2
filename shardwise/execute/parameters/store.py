"""The parameters of a plan on this rank: cut when loaded, whole when used, summed when trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from shardwise.errors import BadInput
from shardwise.execute import collectives
from shardwise.execute.parameters.bucket import Slot
from shardwise.execute.parameters.gathering import GatheredParameter, Gatherer
from shardwise.execute.parameters.kept import SpreadParameter, WholeParameter
from shardwise.execute.parameters.reducer import BUCKET_BYTES, FIRST_BUCKET_BYTES, Reducer
from shardwise.execute.parameters.spec import ParameterSpec, Placement
from shardwise.execute.rank_mesh import RankMesh, axes_of

Kept = WholeParameter | SpreadParameter | GatheredParameter


class ParameterStore:
    """Parameters and buffers of `specs`, in the order in which the forward pass reads them.

    Every rank of the mesh makes a store of the same specs, and uses, loads and gathers the same
    names in the same order. Where a spec is under ZeRO 3, the forward pass runs inside
    `saving()`. A step has `micro_batches` calls of `backward`; after the last, gradients are whole
    (`parameters()` have them in `.grad`) when `backward` returns. Gradients are sums over ranks,
    never means. Double backward and `torch.autograd.grad` towards parameters are not offered, as
    with DistributedDataParallel.
    """

    def __init__(
        self,
        specs: Iterable[ParameterSpec],
        mesh: RankMesh,
        *,
        micro_batches: int = 1,
        device: torch.device | str = "cpu",
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
    ) -> None:
        self.mesh = mesh
        self.micro_batches = micro_batches
        self.device = torch.device(device)
        self._gatherer = Gatherer()
        self._kept: dict[str, Kept] = {}
        self._buffers: set[str] = set()
        self._spread: list[SpreadParameter] = []
        for spec in specs:
            if spec.name in self._kept:
                raise BadInput("is there twice", field=spec.name, expected="one spec per name")
            self._kept[spec.name] = self._keep(Placement(spec, mesh))
            if spec.buffer:
                self._buffers.add(spec.name)
        self._reducer = Reducer(
            list(self._slots()),
            micro_batches=micro_batches,
            bucket_bytes=bucket_bytes,
            first_bucket_bytes=first_bucket_bytes,
            after=self._gatherer.drop,
        )
        for slot in self._slots_made:
            kept = self._kept[slot.placement.name]
            kept.leaf.register_post_accumulate_grad_hook(self._reducer.hook(slot))

    def _keep(self, placement: Placement) -> Kept:
        if placement.stage == 3:
            return GatheredParameter(placement, self.device, self._gatherer)
        if placement.stage:
            kept = SpreadParameter(placement, self.device, self._refresh)
            self._spread.append(kept)
            return kept
        return WholeParameter(placement, self.device)

    def _slots(self) -> Iterator[Slot]:
        self._slots_made: list[Slot] = []
        for kept in self._kept.values():
            if kept.placement.carries_gradient:
                slot = Slot(kept.placement, kept.parameter)
                self._slots_made.append(slot)
                yield slot

    def _refresh(self) -> None:
        """Gathers all parameters that the optimizer wrote, the first to be used first."""
        for kept in self._spread:
            kept.begin_refresh()

    @property
    def reducer(self) -> Reducer:
        """What sums the gradients."""
        return self._reducer

    @property
    def names(self) -> Sequence[str]:
        """Of parameters and buffers, in the order of the specs."""
        return list(self._kept)

    def placement(self, name: str) -> Placement:
        """Where a parameter lies."""
        return self._kept[name].placement

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Names and what an optimizer takes: the local part, or its flat shard under ZeRO 1-3."""
        for name, kept in self._kept.items():
            if name not in self._buffers:
                yield name, kept.parameter

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """What an optimizer takes."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and local parts of buffers."""
        return ((name, self._kept[name].local()) for name in self._kept if name in self._buffers)

    def use(self, name: str) -> torch.Tensor:
        """The local part in its layout, differentiable back to the parameter; may communicate."""
        return self._kept[name].use()

    def user(self, name: str) -> Callable[[], torch.Tensor]:
        """`use` of one name, resolved once."""
        return self._kept[name].use

    @property
    def gathers(self) -> bool:
        """Whether some parameter is under ZeRO 3, so that forward passes need `saving()`."""
        return any(isinstance(kept, GatheredParameter) for kept in self._kept.values())

    def saving(self) -> Any:
        """Context of a forward pass: autograd keeps no whole parameter that is under ZeRO 3.

        Hooks for saved tensors do not nest in torch: who has hooks of their own calls `pack` and
        `unpack` from them.
        """
        return torch.autograd.graph.saved_tensors_hooks(self._gatherer.pack, self._gatherer.unpack)

    def pack(self, tensor: torch.Tensor) -> Any:
        """What autograd keeps for `tensor`: a note if it lies in a whole ZeRO 3 parameter."""
        return self._gatherer.pack(tensor)

    def unpack(self, kept: Any) -> torch.Tensor:
        """The tensor that `pack` was given; communicates for a note."""
        return self._gatherer.unpack(kept)

    def load(self, full: Mapping[str, torch.Tensor]) -> None:
        """Takes this rank's part of every parameter and buffer from whole ones.

        Names beyond those of the specs are passed over. Raises BadInput for a name that is missing
        or a shape that differs.
        """
        missing = [name for name in self._kept if name not in full]
        if missing:
            raise BadInput("is missing among the given tensors", field=missing[0])
        for name, kept in self._kept.items():
            kept.load(kept.placement.cut(full[name].detach()))

    def full(self, name: str) -> torch.Tensor:
        """The whole parameter or buffer, on every rank; collective."""
        kept = self._kept[name]
        whole, spec = kept.local().clone(), kept.placement.spec
        for dim, extent in enumerate(spec.shape):
            axes = axes_of(spec.layout, dim)
            if axes:
                whole = collectives.all_gather(whole, dim, self.mesh, axes, extent)
        return whole

    def full_state(self) -> dict[str, torch.Tensor]:
        """All parameters and buffers, whole, on every rank; collective."""
        return {name: self.full(name) for name in self._kept}
