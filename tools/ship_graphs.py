"""Rebuilds the shipped graphs.

    python -m tools.ship_graphs [NAME…]
    python -m tools.ship_graphs --presets [NAME…]

captures them into shardwise/data/graphs/, or presets with their defaults into shardwise/data/
presets/ (needs the torch and models extras); the files are the same byte for byte with the same
versions of torch, transformers and diffusers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from shardwise.capture.capture import capture
from shardwise.capture.presets import preset_names
from shardwise.capture.shipped import FOLDER, PRESETS_FOLDER, RECIPES
from shardwise.errors import NotFound, ShardwiseError
from shardwise.graph.document import graph_id
from shardwise.graph.files import write_graph
from shardwise.graph.graph import Graph


def make(name: str, folder: Path = FOLDER) -> Path:
    """Captures one shipped graph into `folder`."""
    recipe = RECIPES[name]
    graph = capture(
        recipe.source, batch=recipe.batch, seq=recipe.seq, dtype=recipe.dtype, name=name
    )
    return written(graph, folder, name)


def make_preset(name: str, folder: Path = PRESETS_FOLDER) -> Path:
    """Captures one preset with its defaults into `folder`."""
    return written(capture(name), folder, name)


def written(graph: Graph, folder: Path, name: str) -> Path:
    """Writes a graph with its layers folded; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json.gz"
    write_graph(graph, path, folded=True)
    print(f"{path.name}: {graph_id(graph)}, {len(graph.operators)} operators", file=sys.stderr)
    return path


def main(names: Sequence[str]) -> int:
    """Makes the named graphs, or all; returns the exit code."""
    presets = "--presets" in names
    names = [name for name in names if name != "--presets"]
    known, take = (preset_names(), make_preset) if presets else (tuple(RECIPES), make)
    try:
        for name in names or known:
            if name not in known:
                raise NotFound(f"no graph {name!r} is shipped; there are {', '.join(known)}")
            take(name)
    except ShardwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
