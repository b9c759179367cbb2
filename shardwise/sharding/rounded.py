"""The products of a graph that are rounded to 8 or 4 bits, by their recipes (`recipes.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.graph.graph import Graph
from shardwise.sharding.recipes import WEIGHTED, Recipe, data_of, sources_of, weight_of


@dataclass(frozen=True)
class Rounded:
    """A product under a recipe; `data` is the tensor that it multiplies by a weight.

    `is_first`: of the products that read this tensor under the recipe it is the first, which rounds
    it for all (Megatron has one layer for queries, keys and values, compilers find equal passes).
    `parameters` are those that the weight is made of.
    """

    recipe: Recipe
    data: str
    port: int
    is_first: bool
    parameters: frozenset[str]

    @property
    def keeps(self) -> bool:
        """Whether it keeps its data rounded, for the gradient of the weight."""
        return self.is_first and self.recipe.keeps_rounded

    @property
    def key(self) -> tuple[Recipe, int, bool]:
        """What its costs depend on, without names."""
        return self.recipe, self.port, self.is_first


def rounded_products(graph: Graph, recipes: Mapping[str, Recipe]) -> dict[str, Rounded]:
    """Returns the rounded products by name, given the recipes of operators by name."""
    if not recipes:
        return {}
    sources = sources_of(graph)
    rounded: dict[str, Rounded] = {}
    seen: set[tuple[str, Recipe]] = set()
    for op in graph.operators:
        recipe = recipes.get(op.name)
        if recipe is None:
            continue
        data = data_of(op)
        rounded[op.name] = Rounded(
            recipe,
            data,
            WEIGHTED[op.kind] - 1,
            (data, recipe) not in seen,
            sources[weight_of(op)],
        )
        seen.add((data, recipe))
    return rounded
