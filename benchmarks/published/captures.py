"""The graphs of the published runs: one capture of each model, kept under out/published.

Runs of one model differ in their batch. It is captured once, on a batch that all of theirs divide,
and cut to that of each run (`execute/micro_batch.py`, which proves the cut with torch).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from math import lcm
from pathlib import Path

from shardwise.graph import read_graph, write_graph
from shardwise.graph.graph import Graph
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.search import Subject

from .run import Run

FOLDER = Path("out/published")

Key = tuple[str, int, str]


def capture_key(run: Run) -> Key:
    """What runs of one capture have in common."""
    return (run.capture, run.seq, run.dtype)


class Captures:
    """The captures of `runs`; other runs cannot be asked for."""

    def __init__(self, runs: Iterable[Run], folder: Path = FOLDER) -> None:
        self._folder = folder
        self._batches: dict[Key, int] = {}
        for run in runs:
            key = capture_key(run)
            self._batches[key] = lcm(self._batches.get(key, 1), run.batch)
        self._whole: tuple[Key, Graph] | None = None
        self._subject: tuple[Key, int, Subject] | None = None
        self._staged: tuple[Key, int, StagedSubject] | None = None

    def subject(self, run: Run) -> Subject:
        """The model on the batch of a whole iteration of the whole job, prepared for predictions.

        That of the last call is kept, so runs are best asked for by capture and batch. Raises
        CaptureError where the torch extra is missing or the model cannot be captured.
        """
        key = capture_key(run)
        if self._subject is None or self._subject[:2] != (key, run.batch):
            self._subject = (key, run.batch, Subject.of(self.graph(run)))
        return self._subject[2]

    def staged(self, run: Run) -> StagedSubject:
        """The same, to be cut into the stages of a pipeline. Raises as `subject`."""
        key = capture_key(run)
        if self._staged is None or self._staged[:2] != (key, run.batch):
            self._staged = (key, run.batch, StagedSubject.of(self.graph(run)))
        return self._staged[2]

    def graph(self, run: Run) -> Graph:
        """The training graph of a whole iteration of the whole job."""
        from shardwise.execute.micro_batch import micro_batch_graph

        key = capture_key(run)
        if self._whole is None or self._whole[0] != key:
            self._whole = (key, self._captured(key))
        parts = self._batches[key] // run.batch
        return self._whole[1] if parts == 1 else micro_batch_graph(self._whole[1], parts)

    def _captured(self, key: Key) -> Graph:
        source, seq, dtype = key
        batch = self._batches[key]
        name = hashlib.sha256(repr((source, batch, seq, dtype)).encode()).hexdigest()[:16]
        target = self._folder / f"{name}.json.gz"
        if target.exists():
            return read_graph(target)
        from shardwise.capture import capture

        graph = capture(source, batch=batch, seq=seq or None, dtype=dtype, name=name)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_graph(graph, target)
        return graph
