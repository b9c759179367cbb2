"""Graph files: `.json` and `.json.gz`."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from shardwise.files import read_bounded, write_whole
from shardwise.graph.document import GRAPH_FILE, canonical_json, folded_json, graph_from_json
from shardwise.graph.graph import Graph
from shardwise.step_sizes import AS_CAPTURED, StepSizes


def read_graph(path: str | os.PathLike[str], sizes: StepSizes = AS_CAPTURED) -> Graph:
    """Reads and validates a graph file; gzip is recognised by content.

    With `sizes` the graph is of another batch or length than the captured ones. Raises BadInput,
    also for sizes that the file does not hold for.
    """
    return graph_from_json(read_bounded(path, GRAPH_FILE), os.fspath(path), sizes)


def write_graph(graph: Graph, path: str | os.PathLike[str], *, folded: bool = False) -> None:
    """Writes the canonical form, or the `folded` one, as `write_document` does."""
    write_document((folded_json if folded else canonical_json)(graph), path)


def write_document(text: bytes, path: str | os.PathLike[str]) -> None:
    """Writes a graph's JSON; `.gz` names are compressed, with no time stamp in them.

    The file appears under its name only when it is complete. Raises BadInput if the folder
    cannot be written.
    """
    data = text + b"\n"
    if Path(path).suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    write_whole(path, data)
