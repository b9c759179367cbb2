"""The parameters of a plan on this rank: cut when loaded, whole when used, summed when trained."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from shardwise.errors import BadInput
from shardwise.execute import collectives
from shardwise.execute.parameters.bucket import Slot
from shardwise.execute.parameters.gathering import GatheredParameter, Gatherer, gather_owned
from shardwise.execute.parameters.kept import SpreadParameter, WholeParameter
from shardwise.execute.parameters.reducer import BUCKET_BYTES, FIRST_BUCKET_BYTES, Reducer
from shardwise.execute.parameters.spec import ParameterSpec, Placement
from shardwise.execute.rank_mesh import RankMesh, axes_of
from shardwise.execute.saved import SavedTensors

StoredParameter = WholeParameter | SpreadParameter | GatheredParameter

Passes = frozenset[int]
"""The backward passes of a micro-batch in which a parameter gets a gradient, by number."""

ONE_PASS: Passes = frozenset({0})


class _Pass(torch.autograd.Function):  # type: ignore[misc]
    """Nothing, whose backward calls what it was given."""

    @staticmethod
    def forward(ctx: Any, seed: torch.Tensor, run: Callable[[], None]) -> torch.Tensor:
        ctx.run = run
        return seed.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        ctx.run()
        return None, None


class _Steps:
    """Counts the optimizer steps that may have written a shard; does not keep its store alive."""

    def __init__(self, stored: Mapping[str, StoredParameter]) -> None:
        shards = [k for k in stored.values() if not isinstance(k, WholeParameter)]
        self._stored = {id(k.parameter): k for k in shards}

    def __call__(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                stored = self._stored.get(id(parameter))
                if stored is not None and parameter.grad is not None:
                    stored.steps += 1


class ParameterStore:
    """Parameters and buffers of `specs`, in the order in which the forward pass reads them.

    Every rank of the mesh makes a store of the same specs, and uses, loads and gathers the same
    names in the same order. If a spec is under ZeRO 3, forward passes run inside the hooks of
    `saved`. A step has `micro_batches` calls of `backward`; when the last returns, `parameters()`
    have their gradients in `.grad`: sums over ranks, never means. Double backward and
    `torch.autograd.grad` towards parameters are not supported, as in DistributedDataParallel.

    Where a micro-batch has several backward passes, as in a pipeline with several stages on a rank,
    `passes` says in which of them each parameter gets a gradient. Parameters with the same passes
    are summed together.
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
        passes: Mapping[str, Passes] | None = None,
    ) -> None:
        self.mesh = mesh
        self.micro_batches = micro_batches
        self.device = torch.device(device)
        self._gatherer = Gatherer()
        self._stored: dict[str, StoredParameter] = {}
        self._buffers: set[str] = set()
        self.counted_elsewhere: frozenset[str] = frozenset()
        """The parameters that an earlier stage of a pipeline has too, and that it counts."""
        self._spread: list[SpreadParameter] = []
        for spec in specs:
            if spec.name in self._stored:
                raise BadInput("occurs twice", field=spec.name, expected="one spec per name")
            self._stored[spec.name] = self._create(Placement(spec, mesh))
            if spec.buffer:
                self._buffers.add(spec.name)
        together: dict[Passes, list[Slot]] = {}
        for slot in self._slots():
            which = (passes or {}).get(slot.placement.name, ONE_PASS)
            together.setdefault(which, []).append(slot)
        self._begun: dict[int, int] = {}
        self._reducers = {
            which: Reducer(
                slots,
                micro_batches=micro_batches * len(which),
                bucket_bytes=bucket_bytes,
                first_bucket_bytes=first_bucket_bytes,
                after=self._gatherer.drop,
                mesh=mesh,
            )
            for which, slots in (together or {ONE_PASS: []}).items()
        }
        for which, slots in together.items():
            for slot in slots:
                stored = self._stored[slot.placement.name]
                stored.leaf.register_post_accumulate_grad_hook(self._reducers[which].hook(slot))

        weakref.finalize(self, register_optimizer_step_post_hook(_Steps(self._stored)).remove)

    def _create(self, placement: Placement) -> StoredParameter:
        if placement.stage == 3:
            return GatheredParameter(placement, self.device, self._gatherer)
        if placement.stage:
            return SpreadParameter(placement, self.device, self._spread)
        return WholeParameter(placement, self.device)

    def _slots(self) -> Iterator[Slot]:
        for stored in self._stored.values():
            if stored.placement.carries_gradient:
                yield Slot(stored.placement, stored.parameter)

    @property
    def reducer(self) -> Reducer:
        """The reducer that sums the gradients; where several do, the first."""
        return next(iter(self._reducers.values()))

    @property
    def names(self) -> Sequence[str]:
        """The names of parameters and buffers, in the order of the specs."""
        return list(self._stored)

    def placement(self, name: str) -> Placement:
        """Returns where a parameter is placed."""
        return self._stored[name].placement

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns what an optimizer takes: local parts by name, flat shards under ZeRO 1 to 3."""
        return {n: stored.parameter for n, stored in self._stored.items() if n not in self._buffers}

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and local parts of buffers."""
        return (
            (name, self._stored[name].local()) for name in self._stored if name in self._buffers
        )

    def use(self, name: str) -> torch.Tensor:
        """Returns the local part in its layout, differentiable; may communicate."""
        return self._stored[name].use()

    def user(self, name: str) -> Callable[[], torch.Tensor]:
        """Returns `use` of one name, resolved once."""
        return self._stored[name].use

    def begin(self, micro_batch: int, which: int = 0) -> None:
        """Sets how many micro-batches have had the next backward pass, `which` of those of a
        micro-batch, in this step.

        Callers that run `micro_batches` backward passes in a row in every step need not call it.
        """
        self._begun[which] = micro_batch + 1
        for passes, reducer in self._reducers.items():
            if which in passes:
                reducer.begin(sum(self._begun.get(number, 0) for number in passes) - 1)

    def run_pass(self, which: int, run: Callable[[], None]) -> None:
        """Runs what runs several passes of autograd as one backward pass: `which` of those of a
        micro-batch, as `begin` was told."""

        def joined() -> None:
            with ExitStack() as stack:
                for passes, reducer in self._reducers.items():
                    if which in passes:
                        stack.enter_context(reducer.joined())
                run()

        seed = torch.zeros((), device=self.device, requires_grad=True)
        _Pass.apply(seed, joined).backward()

    def begin_step(self) -> None:
        """Forgets the passes of the step before; callers that name passes by `which` call it."""
        self._begun.clear()

    @property
    def saved(self) -> SavedTensors | None:
        """Hooks under which forward passes run, so that nothing under ZeRO 3 stays whole.

        None (the default): no hooks run, and autograd keeps what was gathered.
        """
        return self._gatherer.saved

    @saved.setter
    def saved(self, saved: SavedTensors | None) -> None:
        self._gatherer.saved = saved

    def load(self, full: Mapping[str, torch.Tensor]) -> None:
        """Takes this rank's part of every parameter and buffer from whole ones.

        Ignores names beyond those of the specs. Raises BadInput if a name is missing or a shape
        differs.
        """
        missing = [name for name in self._stored if name not in full]
        if missing:
            raise BadInput(
                "is missing among the given tensors",
                field=missing[0],
                expected="every parameter and buffer of the model",
            )
        for name, stored in self._stored.items():
            stored.load(stored.placement.cut(full[name].detach()))

    def mark_written(self) -> None:
        """Notes on every rank that shards were written from outside, so that all ranks gather them
        again: ranks without elements of a parameter cannot tell."""
        for stored in self._stored.values():
            if not isinstance(stored, WholeParameter):
                stored.steps += 1

    def whole(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the global tensor, on every rank, of one shaped like `parameters()[name]`.

        This may be the parameter itself, its gradient, or a moment of the optimizer. Collective.
        """
        place = self._stored[name].placement
        if not place.present:
            whole = torch.empty(place.spec.shape, dtype=tensor.dtype, device=tensor.device)
        else:
            whole = self._assembled(place, tensor.detach())
        mesh = place.mesh
        if mesh.world_size < self.mesh.world_size:
            whole = whole.contiguous()
            dist.broadcast(whole, mesh.world_rank(0))
        return whole

    def _assembled(self, place: Placement, flat: torch.Tensor) -> torch.Tensor:
        """Returns the global tensor on the ranks that have a part of it."""
        mesh = place.mesh
        if place.stage and place.shares is not None:
            flat = gather_owned(place, flat)
        elif place.stage:
            padded = flat.new_zeros(place.shard)
            padded[: len(place.own)] = flat
            flat = flat.new_empty(place.shard * place.parts)
            dist.all_gather_into_tensor(flat, padded, group=mesh.group(place.sharding))
        whole = flat.view(-1)[: place.elements].view(place.local_shape)
        for dim, extent in enumerate(place.spec.shape):
            axes = axes_of(place.spec.layout, dim)
            if axes:
                whole = collectives.all_gather(whole, dim, mesh, axes, extent)
        return whole

    def full(self, name: str) -> torch.Tensor:
        """Returns the global parameter or buffer, on every rank; collective."""
        return self.whole(name, self._stored[name].parameter).clone()

    def full_state(self) -> dict[str, torch.Tensor]:
        """Returns all parameters and buffers, whole, on every rank; collective."""
        return {name: self.full(name) for name in self._stored}
