"""The parts of a graph that rules on operators refer to: names, scopes, groups, variables.

Reading them takes the whole graph, so this is done once for each graph, in a process of its own
with bounded memory and time (questions/digest_child.py), and kept in memory. A graph that cannot be
read within these limits is left to the worker, which checks everything itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from fnmatch import translate
from functools import cached_property
from time import monotonic

import msgspec

from service.base.settings import Settings
from shardwise import validation
from shardwise.cost.pins import (
    LEVELS,
    SOME,
    Pin,
    axis_rules,
    no_axis,
    no_end,
    no_operator,
    require_variables,
    without_end,
)
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.sharding.coarsen import coarsen
from shardwise.tdl import registry

MOST_OPERATORS = 400_000
"""Operators of all digests that one process keeps."""

READ_S = 20.0
CHECK_S = 0.5
"""Time limit for checking the pins of one question; a worker checks the rest."""

_GLOB = re.compile(r"[*?\[]")


class GraphDigest(msgspec.Struct, frozen=True, dict=True):
    """For each operator its name, scope and group (-1: none); for each group name and variables."""

    names: list[str]
    scopes: list[str]
    groups: list[int]
    group_names: list[str]
    variables: list[list[str]]

    @cached_property
    def by_text(self) -> dict[str, list[int]]:
        """The operators of each name and of each scope."""
        operators_of: dict[str, list[int]] = {}
        for texts in (self.names, self.scopes):
            for position, text in enumerate(texts):
                operators_of.setdefault(text, []).append(position)
        return operators_of

    def bound_by(self, rule: Pin) -> list[int]:
        """Returns the operators that a rule is for."""
        if not _GLOB.search(rule.pattern):
            return self.by_text.get(rule.pattern, [])
        if not rule.pattern.strip("*"):
            return list(range(len(self.names)))
        matches = re.compile(translate(rule.pattern)).match
        return [i for text, operators in self.by_text.items() if matches(text) for i in operators]

    def require_possible(
        self, rules: Sequence[Pin], axes: Sequence[tuple[str, str]] | None
    ) -> None:
        """Raises the `BadInput` that a search would raise for these rules.

        `axes` are name and level of the mesh's axes; None if a count without the axis is merely
        skipped.
        """
        until = monotonic() + CHECK_S
        bound: dict[Pin, set[int]] = {}
        for rule in rules:
            operators = self.bound_by(rule)
            if not operators:
                raise no_operator(rule, self.names[:SOME])
            bound[rule] = {self.groups[i] for i in operators} - {-1}
            if monotonic() > until:
                return
        for rule, groups in bound.items():
            require_variables(rule, {v for group in groups for v in self.variables[group]})
        if axes is not None:
            self._require_axes([rule for rule, groups in bound.items() if groups], axes)
        self._require_ends(bound)

    @staticmethod
    def _require_axes(rules: Sequence[Pin], axes: Sequence[tuple[str, str]]) -> None:
        for rule in axis_rules(rules):
            if rule.key not in LEVELS and not any(rule.key in named for named in axes):
                raise no_axis(rule, [name for name, _ in axes])

    def _require_ends(self, bound: dict[Pin, set[int]]) -> None:
        rules = [rule for rule in bound if rule.key == "partial"]
        for group in sorted({group for rule in rules for group in bound[rule]}):
            if without_end(rule for rule in rules if group in bound[rule]):
                raise no_end(self.group_names[group])


def digest_of(graph: Graph) -> GraphDigest:
    """Returns the digest of a graph; takes some seconds for a large one."""
    coarsened = coarsen(graph, lambda op: registry.analyse(op, graph.tensors))
    group_of = coarsened.group_of
    return GraphDigest(
        [op.name for op in graph.operators],
        [op.scope for op in graph.operators],
        [group_of.get(op.name, -1) for op in graph.operators],
        [group.name for group in coarsened.groups],
        [list(group.variables) for group in coarsened.groups],
    )


class Digests:
    """The digests that one process has read; keeps the most recently used ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._known: OrderedDict[str, GraphDigest | None] = OrderedDict()

    def tried(self, graph_id: str) -> bool:
        """Returns whether reading the graph was tried, with or without success."""
        with self._lock:
            return graph_id in self._known

    def known(self, graph_id: str) -> GraphDigest | None:
        """Returns the digest, if the graph was read."""
        with self._lock:
            if graph_id in self._known:
                self._known.move_to_end(graph_id)
            return self._known.get(graph_id)

    def learn(self, graph_id: str, canonical: bytes, settings: Settings) -> None:
        """Reads a graph, unless it was read before or another is being read just now.

        Requests never wait for each other's graphs: the worker checks what is not checked here.
        """
        if self.tried(graph_id) or not self._reading.acquire(blocking=False):
            return
        try:
            self._keep(graph_id, _read(canonical, settings))
        finally:
            self._reading.release()

    def _keep(self, graph_id: str, digest: GraphDigest | None) -> None:
        with self._lock:
            self._known[graph_id] = digest
            while sum(self._sizes()) > MOST_OPERATORS and len(self._known) > 1:
                self._known.popitem(last=False)

    def _sizes(self) -> Iterator[int]:
        # A graph that could not be read is counted too, so that it is not tried each time.
        return (100 if digest is None else len(digest.names) for digest in self._known.values())


def _read(canonical: bytes, settings: Settings) -> GraphDigest | None:
    command = [sys.executable, "-P", "-m", "service.questions.digest_child"]
    try:
        done = subprocess.run(
            [*command, str(settings.ingest_memory_bytes)],
            input=canonical,
            capture_output=True,
            timeout=READ_S,
            check=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        return validation.decode(done.stdout, GraphDigest)
    except (subprocess.SubprocessError, BadInput):
        return None
