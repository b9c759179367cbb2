"""The graphs of the published runs, captured once and kept under out/published."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shardwise.graph import read_graph, write_graph
from shardwise.graph.graph import Graph

from .runs import Run

FOLDER = Path("out/published")


def graph_of(run: Run, folder: Path = FOLDER) -> Graph:
    """The training graph of a whole iteration of the whole job.

    Raises CaptureError where the torch extra is missing or the model cannot be captured.
    """
    asked = (run.capture, run.batch, run.seq, run.dtype)
    key = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]
    target = folder / f"{run.name}-{key}.json.gz"
    if target.exists():
        return read_graph(target)
    from shardwise.capture import capture

    graph = capture(
        run.capture, batch=run.batch, seq=run.seq or None, dtype=run.dtype, name=run.name
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_graph(graph, target)
    return graph
