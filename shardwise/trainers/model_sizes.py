"""Sizes of a model: as a trainer's file gives them, and as a graph shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.trainers.models import MODELS, Model

LAYERS, HIDDEN, HEADS = SIZES = ("layers", "hidden size", "attention heads")
_NUMBERED = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)(?:\.|$)")


def sizes_of_model(model: Model) -> dict[str, int]:
    """Returns the sizes of a preset that trainers know."""
    return {LAYERS: model.layers, HIDDEN: model.hidden, HEADS: model.heads}


def of_flavor(name: str, flavor: str) -> str | None:
    """Returns the preset that is torchtitan's model and flavor, None where none is."""
    wanted = (name.lower(), flavor.lower())
    for preset, model in MODELS.items():
        if model.titan is not None and tuple(one.lower() for one in model.titan) == wanted:
            return preset
    return None


def stacks_of(graph: Graph) -> dict[str, int]:
    """Returns the number of blocks of each list of them, by the path in front of their number."""
    stacks: dict[str, int] = {}
    for operator in graph.operators:
        match = _NUMBERED.search(operator.scope)
        if match is not None:
            stack = operator.scope[: match.start(1)]
            stacks[stack] = max(stacks.get(stack, 0), int(match[1]) + 1)
    return stacks


def sizes_of_graph(graph: Graph) -> dict[str, frozenset[int]]:
    """Returns the sizes that a graph of a language model shows; empty for other graphs.

    Layers are counted by numbered modules, for each stack of them; hidden sizes are the widths of
    embeddings. The attention heads are those of the preset by the graph's name.
    """
    tables = {
        graph.tensors[operator.inputs[0]].shape
        for operator in graph.operators
        if operator.kind == "aten.embedding.default"
    }
    stacks = stacks_of(graph)
    if not tables or not stacks:
        return {}
    sizes = {
        LAYERS: frozenset(stacks.values()),
        HIDDEN: frozenset(int(shape[-1]) for shape in tables),
    }
    preset = MODELS.get(graph.name)
    if preset is not None and preset.layers in sizes[LAYERS] and preset.hidden in sizes[HIDDEN]:
        sizes[HEADS] = frozenset((preset.heads,))
    return sizes


def check_model(graph: Graph, said: Mapping[str, int], file: str) -> None:
    """Raises `BadInput` naming `file` where it is of another model than the graph."""
    if not said:
        return
    shown = sizes_of_graph(graph)
    differing = [name for name in said if name in shown and said[name] not in shown[name]]
    if not differing:
        return
    theirs = ", ".join(f"{name} {said[name]:,}" for name in differing)
    ours = ", ".join(f"{name} {max(shown[name]):,}" for name in differing)
    raise BadInput(
        f"it is of another model: {theirs}; the graph {graph.name[:60]!r} has {ours}",
        file=file,
        expected="a graph of the model that the file names",
    )
