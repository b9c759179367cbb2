"""Rebuilds the shipped graphs.

    python -m tools.ship_graphs [NAME…]
    python -m tools.ship_graphs --presets [NAME…]

captures them into shardwise/data/graphs/, or presets with their defaults into shardwise/data/
presets/ (needs the torch and models extras), each several times to find its symbols; the files are
the same byte for byte with the same versions of torch, transformers and diffusers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardwise.capture.capture import capture
from shardwise.capture.presets import preset_names
from shardwise.capture.shipped import FOLDER, PRESETS_FOLDER, RECIPES
from shardwise.capture.symbol_points import symbolic_of_source
from shardwise.errors import BadInput, NotFound, ShardwiseError
from shardwise.graph.document import folded_json, graph_id
from shardwise.graph.files import write_document
from shardwise.graph.graph import Graph
from shardwise.graph.symbols import SYMBOLS


def make(name: str, folder: Path = FOLDER) -> Path:
    """Captures one shipped graph into `folder`."""
    recipe = RECIPES[name]
    sizes: dict[str, Any] = {"batch": recipe.batch, "seq": recipe.seq, "dtype": recipe.dtype}
    return written(recipe.source, capture(recipe.source, name=name, **sizes), folder, **sizes)


def make_preset(name: str, folder: Path = PRESETS_FOLDER) -> Path:
    """Captures one preset with its defaults into `folder`."""
    return written(name, capture(name), folder, batch=None, seq=None, dtype=None)


def written(source: str, graph: Graph, folder: Path, **asked: Any) -> Path:
    """Writes a graph with its layers folded, and with symbols; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{graph.name}.json.gz"
    try:
        document = symbolic_of_source(source, graph, **asked) or folded_json(graph)
    except BadInput as reason:
        print(f"{graph.name} is of one size: {reason}", file=sys.stderr)
        document = folded_json(graph)
    write_document(document, path)
    symbols = json.loads(document).get(SYMBOLS, {})
    held = ", ".join(f"{name} {one['least']} to {one['most']}" for name, one in symbols.items())
    print(f"{path.name}: {graph_id(graph)}, {held}", file=sys.stderr)
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
