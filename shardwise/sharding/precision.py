"""Mixed precision: the graph as it would be if weights and activations had 16 bits.

Parameters, buffers and activations of float32 become 16 bits wide; the optimizer keeps float32
master weights and moments (`StepSettings.state`; Micikevicius et al. 2018). Losses
and softmaxes over classes stay in float32, as `torch.autocast` keeps them: what such an operator
reads and makes is not narrowed. Linear layers may compute in 8 or 4 bits (`recipes.py`) where all
else has 16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from shardwise.graph.graph import Graph, Operator
from shardwise.sharding.coarsen import Coarsened
from shardwise.sharding.recipes import (
    RECIPES,
    Recipe,
    products_by_weights,
    recipe_named,
    suits,
)

CAPTURED, BF16 = "captured", "bf16"
PRECISIONS: Mapping[str, str | None] = {
    CAPTURED: None,
    BF16: "bfloat16",
    "fp16": "float16",
    **dict.fromkeys(RECIPES, "bfloat16"),
}
"""What activations and weights are computed in; `captured` leaves every dtype as it is. In recipes
of 8 and 4 bits all that they do not round is in bfloat16."""

OF_OPERATORS = (CAPTURED, BF16, *RECIPES)
"""What a rule may say of operators: the dtypes of the graph, no recipe, or this one."""

Own = Callable[[Operator], str | None]
"""Returns which of `OF_OPERATORS` an operator has for itself, None where the option counts."""

FULL_PRECISION = ("log_softmax", "nll_loss", "cross_entropy", "mse_loss", "binary_cross_entropy")
"""Operators that `torch.autocast` runs in float32, by the stem of their kind."""


def narrow(coarsened: Coarsened, precision: str, own: Own, *, torchao: bool = False) -> Coarsened:
    """Returns the same groups with float32 tensors in 16 bits, and the recipes of operators, as
    TransformerEngine has them or torchao."""
    graph = narrow_graph(coarsened.graph, precision, own)
    recipes = recipes_of(graph, precision, own, torchao=torchao)
    if graph is coarsened.graph and not recipes:
        return coarsened
    return replace(coarsened, graph=graph, recipes=recipes)


def narrow_graph(graph: Graph, precision: str, own: Own) -> Graph:
    """Returns the graph with float32 tensors in 16 bits, except those of operators that keep
    theirs."""
    dtype = PRECISIONS[precision]
    if dtype is None:
        return graph
    wide = {name for name, t in graph.tensors.items() if t.role in ("input", "output")}
    for op in graph.operators:
        if own(op) == CAPTURED or any(stem in op.kind for stem in FULL_PRECISION):
            wide.update(op.inputs, op.outputs)
    tensors = {
        name: t if t.dtype != "float32" or name in wide else replace(t, dtype=dtype)
        for name, t in graph.tensors.items()
    }
    return Graph(graph.name, tensors, graph.operators)


def recipes_of(
    graph: Graph, precision: str, own: Own, *, torchao: bool = False
) -> dict[str, Recipe]:
    """Returns the recipes of the operators that have one, by name.

    Linear layers whose sizes do not suit a recipe stay in 16 bits.
    """
    recipes: dict[str, Recipe] = {}
    for op in products_by_weights(graph):
        recipe = recipe_named(own(op) or precision, torchao=torchao)
        if recipe is not None and suits(recipe, op, graph):
            recipes[op.name] = recipe
    return recipes
