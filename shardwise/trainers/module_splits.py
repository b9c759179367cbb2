"""How the weights of a model's modules are split over the tensor axis, from a plan's layouts.

A product whose weight is split by its outputs is `ColwiseParallel`, by its inputs
`RowwiseParallel`. Inside a block, columns are followed by rows, and what is between them stays
split. With sequence parallelism, hidden states between them are split by position: columns gather
them, rows scatter them, and whatever else has parameters is repeated on parts of the positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from shardwise.documents import Plan
from shardwise.documents.parallelism import Parallelism
from shardwise.documents.plan import PlannedOperator
from shardwise.errors import BadInput

LINEAR, EMBEDDING = "aten.linear.default", "aten.embedding.default"
_PARAMETERS = (".weight", ".bias")
_PATH = re.compile(r"[A-Za-z_0-9]+(\.[A-Za-z_0-9]+)*")
_BLOCK = re.compile(r"^(.+?)\.(\d+)(?=\.)")
_SHARD = re.compile(r"shard\((\d+)\)")
_REPLICATED = "Replicate()"
_POSITIONS = "Shard(POSITIONS)"

Kind = Literal["linear", "embedding", "other"]


@dataclass(frozen=True)
class Module:
    """A module with parameters: how its weight and what it makes are split over the tensor axis."""

    path: str
    kind: Kind
    weight: int | None
    made: int | None
    owner: str

    @property
    def block(self) -> str:
        """Returns the path of the block that the module is in, empty outside of all."""
        match = _BLOCK.match(f"{self.path}.")
        return match[0] if match else ""

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]


@dataclass(frozen=True)
class Splits:
    """Lists of blocks, the style of each module that needs one, and modules with tied weights."""

    blocks: tuple[str, ...]
    styles: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)


def splits_of(plan: Plan, parallelism: Parallelism) -> Splits:
    """Returns how a plan splits the modules of its model.

    Raises `BadInput` for names that are no module paths, and for splits that torch's styles cannot
    say: of part of the tensor axes, of other parameters than those of nn.Linear and nn.Embedding,
    and columns without rows between which hidden states would be split.
    """
    axes = _tensor_axes(plan, parallelism.tensor)
    modules = _modules(plan, axes)
    blocks = tuple(dict.fromkeys(_list_of(module.block) for module in modules if module.block))
    if parallelism.tensor == 1:
        return Splits(blocks)
    if not any(module.weight is not None for module in modules):
        raise BadInput(
            f"tensor parallelism of degree {parallelism.tensor}, and no weight is split",
            field="groups",
            expected="a plan that splits nn.Linear modules",
        )
    styles: dict[str, str] = {}
    for number, module in enumerate(modules):
        style = _style(module, modules[:number], modules[number + 1 :], parallelism.sequence)
        if style is not None:
            styles[module.path] = style
    if parallelism.sequence:
        for module in modules:
            if _gathers_in_parent(module):
                styles[module.parent] = "GatherPositions()"
    tied = {module.path: module.owner for module in modules if module.owner != module.path}
    return Splits(blocks, _with_stars(styles), tied)


def _tensor_axes(plan: Plan, degree: int) -> list[int]:
    """Returns the positions of the mesh's innermost axes that make up the tensor degree."""
    axes = plan.mesh.axes
    for first in range(len(axes), -1, -1):
        if prod(axis.size for axis in axes[first:]) == degree:
            return list(range(first, len(axes)))
    raise BadInput(
        f"no innermost axes of the mesh have {degree} devices",
        field="mesh.axes",
        expected="a degree that the product of innermost axes has",
    )


def _modules(plan: Plan, axes: Sequence[int]) -> list[Module]:
    """Returns the modules with parameters, in the order of execution."""
    by_name = {op.name: op for group in plan.groups for op in group.operators}
    modules: dict[str, Module] = {}
    for name in plan.order:
        op = by_name.get(name)
        if op is None:
            continue
        for module in _of_operator(op, axes):
            modules.setdefault(module.path, module)
    return list(modules.values())


def _of_operator(op: PlannedOperator, axes: Sequence[int]) -> Iterator[Module]:
    """Yields the module whose parameters an operator reads."""
    parameters = [name for name in op.inputs if name.endswith(_PARAMETERS)]
    if not parameters:
        return
    path = op.name.rpartition(".")[0]
    for name in (path, *parameters):
        if not _PATH.fullmatch(name):
            raise BadInput(
                f"{name[:60]!r} is not a module path",
                field="groups.operators",
                expected="names of modules, joined by dots",
            )
    made = _split(next(iter(op.outputs.values()), []), axes, op.name)
    kinds: dict[str, Kind] = {LINEAR: "linear", EMBEDDING: "embedding"}
    kind = kinds.get(op.kind, "other")
    if kind == "other":
        split = [name for name in parameters if _split(op.inputs[name], axes, op.name) is not None]
        if split:
            raise BadInput(
                f"{op.kind} splits its parameter {split[0]}, which fsdp2 cannot say",
                field=f"groups.operators.{op.name}",
                expected="splits of nn.Linear and nn.Embedding",
            )
        owner = parameters[0].rpartition(".")[0]
        yield Module(owner, kind, None, made, owner)
        return
    weight = next(name for name in parameters if name.endswith(".weight"))
    owner = weight.rpartition(".")[0]
    yield Module(path, kind, _split(op.inputs[weight], axes, op.name), made, owner)


def _split(layout: Sequence[str], axes: Sequence[int], name: str) -> int | None:
    """Returns the dimension that all tensor axes split, None where none does."""
    words = {layout[axis] for axis in axes if axis < len(layout)}
    shards = {word for word in words if word.startswith("shard")}
    if not shards:
        return None
    match = _SHARD.fullmatch(next(iter(shards)))
    if len(words) > 1 or match is None:
        raise BadInput(
            f"{name} is split over a part of the tensor axes",
            field="groups.operators",
            expected="all of them, or none",
        )
    return int(match[1])


def _style(
    module: Module, before: Sequence[Module], after: Sequence[Module], sequence: bool
) -> str | None:
    """Returns torch's style for a module, None for one that stays as it is."""
    if module.kind == "embedding":
        styles = {0: "RowwiseParallel(input_layouts=Replicate())",
                  1: "ColwiseParallel(output_layouts=Replicate())"}  # fmt: skip
        return styles.get(-1 if module.weight is None else module.weight)
    parts = sequence and (bool(module.block) or any(other.block for other in before))
    hidden = _POSITIONS if parts else _REPLICATED
    if module.kind == "linear" and module.weight == 0:
        return _columns(module, after, hidden)
    if module.kind == "linear" and module.weight == 1:
        split = any(_is_columns(other) and other.block == module.block for other in before)
        arguments = ["" if split else f"input_layouts={hidden}"]
        arguments.append("" if hidden == _REPLICATED else f"output_layouts={hidden}")
        return f"RowwiseParallel({', '.join(filter(None, arguments))})"
    if _between(module, before, after):
        if module.made is None:
            raise BadInput(
                f"{module.path} repeats its work between columns and rows",
                field=f"groups.operators.{module.path}",
                expected="its heads or features split",
            )
        return f"SequenceParallel(sequence_dim={module.made}, use_local_output=True)"
    if not parts:
        return None
    if module.kind == "linear" and not module.block:
        return "GatherPositions(whole=True)"
    return "SequenceParallel(sequence_dim=POSITIONS, use_local_output=True)"


def _columns(module: Module, after: Sequence[Module], hidden: str) -> str:
    rows = any(_is_rows(other) and other.block == module.block for other in after)
    arguments = []
    if hidden != _REPLICATED and not _gathers_in_parent(module):
        arguments.append(f"input_layouts={hidden}")
    if not (rows and module.block):
        arguments.append(f"output_layouts={_REPLICATED if not module.block else hidden}")
    return f"ColwiseParallel({', '.join(arguments)})"


def _between(module: Module, before: Sequence[Module], after: Sequence[Module]) -> bool:
    """Returns whether a module works on what columns have split, such as a norm of queries."""
    inside = [other for other in (*before, *after) if other.parent == module.parent]
    return bool(module.block) and any(map(_is_columns, inside)) and any(map(_is_rows, inside))


def _gathers_in_parent(module: Module) -> bool:
    """Returns whether the module around columns reads the hidden states, once for all of them."""
    block = module.block
    return bool(block) and _is_columns(module) and module.parent != block


def _is_columns(module: Module) -> bool:
    return module.kind == "linear" and module.weight == 0


def _is_rows(module: Module) -> bool:
    return module.kind == "linear" and module.weight == 1


def _list_of(block: str) -> str:
    return block.rpartition(".")[0]


def _with_stars(styles: dict[str, str]) -> dict[str, str]:
    """Returns one entry for all blocks of a list where they have the same style."""
    alike: dict[str, set[str]] = {}
    for path, style in styles.items():
        alike.setdefault(_BLOCK.sub(r"\1.*", path), set()).add(style)
    return {
        star if len(alike[star]) == 1 else path: style
        for path, style in styles.items()
        for star in (_BLOCK.sub(r"\1.*", path),)
    }
