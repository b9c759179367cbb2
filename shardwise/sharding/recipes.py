"""Recipes of products in 8 and 4 bits: what linear layers round, when, and what they keep.

A layer y = x w computes three products, each of which sums over another dimension:

    y  = x w      over features     x and w are rounded to `forward`
    dx = dy wᵀ    over outputs      dy is rounded to `gradient`, w as before
    dw = xᵀ dy    over tokens       x and dy as before; in 16 bits where `rounds_dw` is not set

A block of numbers shares one scale. `data_block` is that of x and dy, `weight_block` that of w: how
many rows, and how many numbers along the summed dimension; None for all. Where a block is longer
one way than the other, the two products that read a tensor read it rounded twice, once along each
dimension. All else stays in 16 bits.

Sources: TransformerEngine 2, recipes of its Common API (`delayed`, `tensorwise` as
Float8CurrentScaling, `blockwise`, `mxfp8`, `nvfp4`), torchao's Float8LinearRecipeName
(`tensorwise`, both `rowwise`); OCP
Microscaling Formats 1.0, §5; NVIDIA 2025, "Pretraining LLMs with NVFP4", §4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from shardwise.graph.graph import Graph, Operator

E4M3, E5M2, E2M1 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"

NOW, BEFORE = "now", "before"
"""Scales follow from the tensor itself, or from what it had in the steps before."""

Block = tuple[int | None, int | None]
WHOLE: Final[Block] = (None, None)


@dataclass(frozen=True)
class Recipe:
    """How linear layers are rounded (above).

    `units` names the peak of a profile at which the products run; a GPU without it has no units for
    them. `item_bytes` is one number with its part of the scales. `reads` is how often a tensor is
    read to be rounded: once more where the scale has to be known first, and once for each way where
    kernels write one. `multiple` is what both sizes of a weight have to be multiples of.
    `weight_block_x` is the block of w for dx where that is another. `once` says that weights are
    rounded once in a step, and the copies kept, not in every pass; `keeps_rounded` that x is kept
    for dw as it was rounded, not in 16 bits. `scales` is NOW or BEFORE, `powers` that scales are
    powers of two; `two_levels` that scales of blocks have 8 bits themselves, with one more scale
    for the tensor.
    """

    name: str
    units: str
    forward: str
    gradient: str
    data_block: Block
    weight_block: Block
    item_bytes: float
    reads: int
    multiple: int
    once: bool
    keeps_rounded: bool
    rounds_dw: bool = True
    scales: str = NOW
    powers: bool = False
    two_levels: bool = False
    weight_block_x: Block | None = None

    @property
    def is_whole(self) -> bool:
        """Whether a tensor has one scale, which all ranks with a share of it have to know."""
        return self.data_block == WHOLE and self.scales == NOW

    def ways(self, block: Block, *, transposes: bool) -> int:
        """Returns in how many ways a tensor that two products read is written.

        `transposes`: units read 8 bits along the summed dimension alone, so that a square block
        needs a transposed copy as well.
        """
        return 2 if block[0] != block[1] or transposes else 1


_TENSORWISE = Recipe(
    "fp8:tensorwise", E4M3, E4M3, E5M2, WHOLE, WHOLE, 1.0,
    reads=2, multiple=16, once=True, keeps_rounded=True,
)  # fmt: skip
_ROWWISE = Recipe(
    "fp8:rowwise", E4M3, E4M3, E4M3, (1, None), (1, None), 1.0,
    reads=2, multiple=16, once=False, keeps_rounded=False, powers=True,
)  # fmt: skip
_ALL = (
    _TENSORWISE,
    _ROWWISE,
    replace(
        _ROWWISE, name="fp8:rowwise_with_gw_hp", rounds_dw=False, weight_block_x=WHOLE
    ),
    replace(
        _TENSORWISE, name="fp8:blockwise", gradient=E4M3, data_block=(1, 128),
        weight_block=(128, 128), item_bytes=1.0 + 4 / 128, reads=1, powers=True,
    ),
    replace(_TENSORWISE, name="fp8:delayed", reads=1, scales=BEFORE),
    replace(
        _TENSORWISE, name="fp8:mxfp8", units="mxfp8", gradient=E4M3, data_block=(1, 32),
        weight_block=(1, 32), item_bytes=1.0 + 1 / 32, reads=1, multiple=32, powers=True,
    ),
    replace(
        _TENSORWISE, name="nvfp4", units="nvfp4", forward=E2M1, gradient=E2M1, data_block=(1, 16),
        weight_block=(16, 16), item_bytes=0.5 + 1 / 16, two_levels=True,
    ),
)  # fmt: skip

RECIPES: Mapping[str, Recipe] = {"fp8": _TENSORWISE, **{recipe.name: recipe for recipe in _ALL}}
"""By what options call them; plain `fp8` is tensorwise."""

TORCHAO: Mapping[str, Recipe] = {
    recipe.name: replace(recipe, once=False, keeps_rounded=False)
    for recipe in _ALL
    if recipe.name in ("fp8:tensorwise", "fp8:mxfp8")
}
"""Recipes as torchao has them, where TransformerEngine has them too: its layers keep data in 16
bits and round weights in every pass (the backward of its Float8Linear and MXLinear)."""


def recipe_named(name: str | None, *, torchao: bool = False) -> Recipe | None:
    """Returns the recipe of a precision, None where it has none."""
    recipe = RECIPES.get(name or "")
    return recipe if recipe is None or not torchao else TORCHAO.get(recipe.name, recipe)


def bits_of(precision: str | None) -> int:
    """Returns the bits of the numbers that linear layers multiply: 4 or 8 by a recipe, else 16,
    which stands for more too."""
    recipe = recipe_named(precision)
    if recipe is None:
        return 16
    return 4 if recipe.forward == E2M1 else 8


WEIGHTED: Mapping[str, int] = {
    "aten.linear.default": 1,
    "aten.mm.default": 1,
    "aten.matmul.default": 1,
    "aten.addmm.default": 2,
    "shardwise.expert_linear.default": 1,
}
"""The position of the weight among the inputs; data is the input before it."""

_LOSSES = ("log_softmax", "nll_loss", "cross_entropy", "mse_loss", "binary_cross_entropy")
_CHOICES = ("topk", "argmax", "sort")


def data_of(op: Operator) -> str:
    """Returns the data of a product by a weight."""
    return op.inputs[WEIGHTED[op.kind] - 1]


def weight_of(op: Operator) -> str:
    """Returns the weight of a product by a weight."""
    return op.inputs[WEIGHTED[op.kind]]


def products_by_weights(graph: Graph) -> Iterator[Operator]:
    """Yields the linear layers that recipes round.

    Left out are the last ones before a loss, the output layer, and those before a choice of experts
    (routers), as trainers leave them in 16 bits.
    """
    made = _made_of_parameters(graph)
    apart = set(_last_before(graph, (*_LOSSES, *_CHOICES)))
    for op in graph.operators:
        place = WEIGHTED.get(op.kind)
        if place is None or op.name in apart or op.inputs[place - 1] in made:
            continue
        if op.inputs[place] in made and len(graph.tensors[op.inputs[place]].shape) > 1:
            yield op


def suits(recipe: Recipe, op: Operator, graph: Graph) -> bool:
    """Returns whether the sizes of a product's weight are multiples of what the recipe needs."""
    return all(size % recipe.multiple == 0 for size in graph.tensors[weight_of(op)].shape[-2:])


def sources_of(graph: Graph) -> dict[str, frozenset[str]]:
    """Returns the parameters that each tensor made of parameters alone is made of."""
    return _made_of_parameters(graph)


def _made_of_parameters(graph: Graph) -> dict[str, frozenset[str]]:
    made = {name: frozenset({name}) for name, t in graph.tensors.items() if t.role == "parameter"}
    for op in graph.operators:
        if op.inputs and all(name in made for name in op.inputs):
            made.update(dict.fromkeys(op.outputs, frozenset().union(*(made[n] for n in op.inputs))))
    return made


def _last_before(graph: Graph, stems: tuple[str, ...]) -> Iterator[str]:
    """Yields the names of the products from which such operators are reached by no other."""
    ends = [op for op in graph.operators if any(stem in op.kind for stem in stems)]
    waiting, seen = [name for op in ends for name in op.inputs], set[str]()
    while waiting:
        name = waiting.pop()
        op = graph.producer.get(name)
        if op is None or name in seen:
            continue
        seen.add(name)
        if op.kind in WEIGHTED:
            yield op.name
        elif not op.kind.startswith("aten.conv"):
            waiting += op.inputs
