"""Notes on precision: language models in float32, and what is modelled of 8 and 4 bits."""

from __future__ import annotations

from collections.abc import Collection

from shardwise.cost.options import Options
from shardwise.graph import Graph
from shardwise.graph.step import step_of
from shardwise.hardware import Hardware
from shardwise.sharding.recipes import RECIPES, Recipe
from shardwise.texts import counted

CAPTURED = "captured"
_NARROW = {"bfloat16": "bf16", "float16": "fp16"}
"""Recommended dtypes, the better first, with their option names."""


def float32_note(graph: Graph, hardware: Hardware, precision: str) -> str | None:
    """Returns a note if a language model is in float32 although its devices compute in 16 bits.

    Returns None where `precision` narrows the graph, or where 16 bits are not faster on all devices
    (a V100 has no units for bfloat16).
    """
    step = step_of(graph)
    if precision != CAPTURED or step.dtype != "float32" or not step.predicts_tokens:
        return None
    faster = (
        name
        for dtype, name in _NARROW.items()
        if all(device.peak(dtype) > device.peak("float32") for device in hardware.devices)
    )
    narrow = next(faster, None)
    if narrow is None:
        return None
    return (
        f"{graph.name} is trained in float32: {narrow} halves activations and computes faster; "
        f"capture with --dtype {narrow} or ask with --precision {narrow}"
    )


def recipe_note(recipes: Collection[Recipe], options: Options) -> str | None:
    """Returns a sentence on the parts of a model in 8 or 4 bits, and on what is modelled of them.

    `recipes` are those of its linear layers; None without a recipe.
    """
    if not recipes and options.precision not in RECIPES:
        return None
    if not recipes:
        recipe = RECIPES[options.precision]
        return (
            f"no linear layer suits {recipe.name}: both sizes of a weight have to be multiples of "
            f"{recipe.multiple}, so all is in 16 bits"
        )
    names = ", ".join(sorted({recipe.name for recipe in recipes}))
    library = "torchao" if options.launching.torchao else "TransformerEngine"
    return (
        f"{counted(len(recipes), 'linear layer')} in {names} as {library} has it (--framework), "
        "all else without: kernels are modelled, a run on CPUs rounds alike"
    )
