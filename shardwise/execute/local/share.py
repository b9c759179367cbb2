"""One rank's share of an operator: which axes split which variable, and the resulting sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.execute.exchange import Exchange
from shardwise.execute.local.calling import complete_attributes
from shardwise.execute.local.waiting import Deferral
from shardwise.execute.rank_mesh import Layout, RankMesh, axes_of
from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.semantics import Access, OperatorSemantics
from shardwise.sharding.layout import PARTIAL, REPLICATE
from shardwise.torch_operators import overload


class NotLocal(ShardwiseError):
    """No exact form of the operator on shares is known; the message says which share and why."""


class Share:
    """The share of the operator that this rank computes.

    `split` names for each mesh axis the variable (its position in the semantics) that it splits.
    `arguments` are the schema names of the inputs; `attributes` the others, defaults filled in. A
    form sets `is_plain` if it is the overload with local sizes, `draws` if it draws random numbers.
    With a `deferral` gradients of weights may be left to it; those of inputs `deferred` are.
    """

    def __init__(
        self,
        op: Operator,
        tensors: Mapping[str, Tensor],
        semantics: OperatorSemantics,
        split: Sequence[int | None],
        mesh: RankMesh,
        exchange: Exchange,
        deferral: Deferral | None = None,
    ) -> None:
        self.op = op
        self.semantics = semantics
        # An axis of one device splits nothing.
        self.split = tuple(
            v if size > 1 else None for v, size in zip(split, mesh.sizes, strict=False)
        )
        self.mesh = mesh
        self.target = overload(op.kind)
        self.inputs = [tensors[name] for name in op.inputs]
        self.outputs = [tensors[name] for name in op.outputs]
        self.arguments = argument_names(op, self.target)
        self.attributes = complete_attributes(self.target, op.attributes, self.arguments)
        self.communicates = False
        self.is_plain = False
        self.draws = False
        self.deferral = deferral
        self.deferred: tuple[int, ...] = ()
        self._exchange = exchange

    @property
    def exchange(self) -> Exchange:
        """The exchange that the form communicates by; reading it sets `communicates`."""
        self.communicates = True
        return self._exchange

    @property
    def silent(self) -> Exchange:
        """The same, for what needs no communication (`first`, `shared`, seeds, the device)."""
        return self._exchange

    @cached_property
    def variables(self) -> tuple[int, ...]:
        """The variables that are split, ascending."""
        return tuple(sorted({v for v in self.split if v is not None}))

    def axes(self, *variables: int) -> tuple[int, ...]:
        """Returns the mesh axes that split any of these variables."""
        return tuple(a for a, v in enumerate(self.split) if v in variables)

    def reads(self, i: int, v: int) -> Access | None:
        return self.semantics.inputs[i].get(v)

    def writes(self, o: int, v: int) -> Access | None:
        return self.semantics.outputs[o].get(v)

    def is_reduction(self, v: int) -> bool:
        return self.semantics.variables[v].is_reduction

    @cached_property
    def reductions(self) -> tuple[int, ...]:
        """The split variables that are summed over."""
        return tuple(v for v in self.variables if self.is_reduction(v))

    @cached_property
    def statistics(self) -> tuple[int, ...]:
        """The split variables over which a statistic is reduced."""
        reduced = {v for s in self.semantics.statistics for v in s.reduced}
        return tuple(v for v in self.variables if v in reduced)

    @cached_property
    def haloed(self) -> tuple[int, ...]:
        """The split variables whose shares read beyond their own rows."""
        return tuple(
            v
            for v in self.variables
            if any(
                access.halo_before or access.halo_after
                for by_variable in self.semantics.inputs
                if (access := by_variable.get(v)) is not None
            )
        )

    def name(self, v: int) -> str:
        return self.semantics.variables[v].name

    def place(self, v: int) -> range:
        """Returns this rank's share of a variable."""
        return self.mesh.share(self.semantics.variables[v].extent, self.axes(v))

    def fraction(self, variables: Sequence[int]) -> float:
        """Returns this rank's fraction of the whole work over these variables."""
        own = prod(len(self.place(v)) for v in variables)
        return own / prod(self.semantics.variables[v].extent for v in variables)

    @cached_property
    def input_layouts(self) -> list[Layout]:
        return [self._layout(by_variable, False) for by_variable in self.semantics.inputs]

    @cached_property
    def output_layouts(self) -> list[Layout]:
        return [self._layout(by_variable, True) for by_variable in self.semantics.outputs]

    def _layout(self, accesses: Mapping[int, Access], output: bool) -> Layout:
        layout = []
        for v in self.split:
            access = accesses.get(v) if v is not None else None
            if access is not None:
                layout.append(access.dim)
            elif output and v is not None and self.is_reduction(v):
                layout.append(PARTIAL)
            else:
                layout.append(REPLICATE)
        return tuple(layout)

    def input_axes(self, i: int, dim: int) -> tuple[int, ...]:
        """Returns the axes that split a dimension of an input."""
        return axes_of(self.input_layouts[i], dim)

    def output_axes(self, o: int, dim: int) -> tuple[int, ...]:
        """Returns the axes that split a dimension of an output."""
        return axes_of(self.output_layouts[o], dim)

    def input_rows(self, i: int, dim: int) -> range:
        """Returns where this rank's part of an input lies in a dimension."""
        return self.mesh.share(self.inputs[i].shape[dim], self.input_axes(i, dim))

    def output_rows(self, o: int, dim: int) -> range:
        """Returns where this rank's part of an output lies in a dimension."""
        return self.mesh.share(self.outputs[o].shape[dim], self.output_axes(o, dim))

    def input_shape(self, i: int) -> tuple[int, ...]:
        return self.mesh.local_shape(self.inputs[i].shape, self.input_layouts[i])

    def output_shape(self, o: int = 0) -> tuple[int, ...]:
        """Returns the shape of this rank's part of an output."""
        return self.mesh.local_shape(self.outputs[o].shape, self.output_layouts[o])

    def replicated_axes(self, o: int) -> tuple[int, ...]:
        """Returns the axes that split the work but leave this output whole on all their ranks."""
        layout = self.output_layouts[o]
        return tuple(
            a for a, v in enumerate(self.split) if v is not None and layout[a] == REPLICATE
        )

    def partial_axes(self, o: int = 0) -> tuple[int, ...]:
        """Returns the axes along which the ranks have terms of the sum."""
        return axes_of(self.output_layouts[o], PARTIAL)

    def argument(self, name: str) -> int | None:
        """Returns the position of the input of this name, or None."""
        return self.arguments.index(name) if name in self.arguments else None

    def touches(self, i: int) -> bool:
        """Returns whether any axis splits the input."""
        return any(state != REPLICATE for state in self.input_layouts[i])

    def refuse(self, variables: Sequence[int], why: str) -> None:
        """Raises NotLocal if any of these variables is split."""
        for v in variables:
            if v in self.variables:
                raise NotLocal(f"{self.name(v)}: {why}")


def argument_names(op: Operator, target: Any) -> list[str]:
    """Returns the schema argument of every input."""
    named = op.attributes.get("tensor_arguments")
    if named is not None:
        return [str(name) for name in named]
    tensors = [a.name for a in target._schema.arguments if "Tensor" in str(a.type)]
    return tensors[: len(op.inputs)]
