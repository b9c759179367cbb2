"""Rebuilds the shipped graphs.

    python -m tools.ship_graphs [NAME…]

captures them into shardwise/data/graphs/ (needs the torch extra); the files are the same byte for
byte with the same versions of torch and transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from shardwise.capture.capture import capture
from shardwise.capture.shipped import FOLDER, RECIPES
from shardwise.errors import NotFound, ShardwiseError
from shardwise.graph.document import graph_id
from shardwise.graph.files import write_graph


def make(name: str, folder: Path = FOLDER) -> Path:
    """Captures one shipped graph into `folder`."""
    recipe = RECIPES[name]
    graph = capture(
        recipe.source, batch=recipe.batch, seq=recipe.seq, dtype=recipe.dtype, name=name
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json.gz"
    write_graph(graph, path)
    print(f"{path.name}: {graph_id(graph)}, {len(graph.operators)} operators", file=sys.stderr)
    return path


def main(names: Sequence[str]) -> int:
    """Makes the named graphs, or all; returns the exit code."""
    try:
        for name in names or RECIPES:
            if name not in RECIPES:
                raise NotFound(f"no graph {name!r} is shipped; there are {', '.join(RECIPES)}")
            make(name)
    except ShardwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
