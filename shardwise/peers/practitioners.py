"""What practitioners run, as rows of a search problem: data parallelism and dp × tp, with ZeRO.

    method          split                                  ZeRO
    data-parallel   samples over all devices               0
    zero            samples over all devices               1, 2
    fsdp            samples over all devices               3 over all devices
    hsdp            samples over all devices               3 inside each of several nodes
    megatron        dp × tp, tp above 1, with or without   0, 1 (its distributed optimizer), 3
                    sequence parallelism (`megatron.py`)

each without recomputation and, where the options allow it, with

    selective       what runs again is every group of a block that multiplies by no weights:
                    normalisations, activation functions, dropouts, and the core of attention
    full            every group of a block

A block is a segment of several groups (`sharding/segments.py`); in a model without blocks all is
one. What tensor parallelism splits is the least sum of the factorisation's space, found once and
taken under every ZeRO stage and recomputation. A search drops configurations that others beat in
every term: a group whose ZeRO stage was dropped takes the nearest that is left.

Trainers run more than that: ZeRO-2 beside tensor parallelism, and shards inside each node under
every stage. Asked what is `allowed`, `practitioners` gives all of it that is.

Edges take their fastest copies; where these do not fit, their smallest are tried.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Progress, quiet
from shardwise.documents.parallelism import Parallelism
from shardwise.peers.evaluate import Step, steps_of
from shardwise.peers.methods import METHODS
from shardwise.peers.practices import Allowed, Choices, Practices
from shardwise.replay.replay import Replayer


@dataclass(frozen=True)
class Practice:
    """One strategy in a problem: `choices` (groups,) and `edge_choices` (edges,).

    `method` is one of `METHODS`, `label` says which of its strategies it is, the same under every
    number of micro-batches, and `parallelism` the same as degrees. `lean`:
    edges keep the smallest copies, which are not the fastest.
    """

    method: str
    label: str
    parallelism: Parallelism
    choices: Choices
    edge_choices: Choices
    lean: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.label

    @property
    def content(self) -> bytes:
        """Is equal for equal strategies."""
        return self.choices.tobytes() + self.edge_choices.tobytes()


@dataclass(frozen=True)
class Practised:
    """A strategy of a problem and its replayed step."""

    practice: Practice
    problem: SearchProblem
    step: Step

    def rank(self, limit_bytes: float) -> tuple[bool, float, float]:
        """Returns what is less for a better one: those that fit by time, others by their peak."""
        peak_bytes, time_s = self.step.peak_bytes, self.step.time_s
        if peak_bytes <= limit_bytes:
            return False, time_s, peak_bytes
        return True, peak_bytes, time_s


def best_of_counts(
    replayers: Iterable[Replayer],
    limit_bytes: float,
    progress: Progress = quiet,
    *,
    methods: Container[str] = METHODS,
) -> list[Practised]:
    """Returns each strategy with its best number of micro-batches, one replayer for each number.

    The best is the fastest that fits, or where none does the one of the least peak. Raises as
    `practitioners` does.
    """
    best: dict[tuple[str, str], Practised] = {}
    for replayer in replayers:
        practices = practitioners(replayer.problem, progress, methods=methods)
        for one in replayed(replayer, practices, limit_bytes):
            known = best.get(one.practice.key)
            if known is None or one.rank(limit_bytes) < known.rank(limit_bytes):
                best[one.practice.key] = one
    order = list(METHODS)
    return sorted(best.values(), key=lambda one: order.index(one.practice.method))


def replayed(
    replayer: Replayer, practices: Sequence[Practice], limit_bytes: float
) -> list[Practised]:
    """Returns strategies of the replayer's problem, replayed; those with the smallest copies only
    where the fastest do not fit."""
    plain = _replay(replayer, [one for one in practices if not one.lean])
    fit = {one.practice.key for one in plain if one.step.peak_bytes <= limit_bytes}
    return plain + _replay(replayer, [o for o in practices if o.lean and o.key not in fit])


def _replay(replayer: Replayer, practices: Sequence[Practice]) -> list[Practised]:
    """Returns strategies with their steps; those of several names are replayed once."""
    distinct = {one.content: one for one in practices}
    steps = steps_of(
        replayer,
        [one.choices for one in distinct.values()],
        [one.edge_choices for one in distinct.values()],
    )
    known = dict(zip(distinct, steps, strict=True))
    return [Practised(one, replayer.problem, known[one.content]) for one in practices]


def practitioners(
    problem: SearchProblem,
    progress: Progress = quiet,
    *,
    methods: Container[str] = METHODS,
    allowed: Allowed | None = None,
    partial: Collection[Parallelism] = (),
    practices: Practices | None = None,
) -> list[Practice]:
    """Returns the strategies of practitioners that the options of a problem allow.

    With `allowed` these are all strategies of the whole model that it marks, whatever `methods`,
    and those in `partial`, in which some blocks run again. `practices` are those of the problem,
    where they are known.

    Some may be equal where configurations were dropped. Those that need more shares of samples
    than a micro-batch has are left out. Raises `Cancelled` when `progress` returns False, and for
    Megatron's `SolverError` when a limit of the options is met.
    """
    of = practices or Practices(problem, progress)
    named = list(of.named(methods) if allowed is None else of.marked(allowed, partial))
    if not named:
        return []
    choices = np.stack([one.choices for one in named])
    found: list[Practice] = []
    for lean in (False, True):
        edges = problem.alternatives(choices, smallest=lean)
        found += [
            Practice(one.method, one.label, one.parallelism, one.choices, of_edges, lean)
            for one, of_edges in zip(named, edges, strict=True)
        ]
    plain = {one.key: one.content for one in found[: len(named)]}
    return [one for one in found if not one.lean or one.content != plain[one.key]]
