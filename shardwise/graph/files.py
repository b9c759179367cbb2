"""Graph files: `.json` and `.json.gz`."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from shardwise.files import read_bounded, write_whole
from shardwise.graph.document import SCHEMA, canonical_json, folded_json, graph_from_json
from shardwise.graph.graph import Graph


def read_graph(path: str | os.PathLike[str]) -> Graph:
    """Reads and validates a graph file; gzip is recognised by content. Raises BadInput."""
    return graph_from_json(read_bounded(path, f"a {SCHEMA} file"), os.fspath(path))


def write_graph(graph: Graph, path: str | os.PathLike[str], *, folded: bool = False) -> None:
    """Writes the canonical form, or the `folded` one; `.gz` names are compressed, with no time
    stamp in them.

    The file appears under its name only when it is complete. Raises BadInput if the folder
    cannot be written.
    """
    data = (folded_json if folded else canonical_json)(graph) + b"\n"
    if Path(path).suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    write_whole(path, data)
