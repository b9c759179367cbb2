"""A captured graph, and what its names stand for in the module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.graph.graph import Graph


@dataclass(frozen=True)
class Converted:
    """A graph and what its names stand for in the module.

    `paths`: the module's own path of every parameter and registered buffer; `constants`: the values
    of tensors that belong to no module; `inputs`: the name of each leaf of the arguments, None if
    it is not a tensor; `outputs`: the same for what the module returns.
    """

    graph: Graph
    paths: Mapping[str, str]
    constants: Mapping[str, Any]
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
