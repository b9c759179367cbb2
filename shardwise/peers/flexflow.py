"""FlexFlow's random search (Jia, Zaharia, Aiken 2019, §6): Metropolis acceptance on time.

    propose   a random operator takes a random configuration
    accept    with probability min(1, exp(β · (cost(S) - cost(S*))))
    start     from data parallelism; stop after a stated number of proposals

A proposal changes one group, so only its own time and that of its edges are looked up again
(the paper's delta simulation). β is per share of the starting time, so that it means the same for
every model: β = 10,000 accepts a strategy that is 0.01 % of the start slower with probability 1/e.
As in FlexFlow's program, the search returns to the best strategy so far a hundred times, evenly.

The space is SOAP: the dimensions of an operator's output (sample, attribute, parameter), as in
`optcnn`. FlexFlow's operator dimension (devices of their own for an operator) is not in our space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.crossings import EdgeTable
from shardwise.cost.options import Progress
from shardwise.errors import Cancelled
from shardwise.peers.answer import Answer
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.evaluate import evaluate
from shardwise.peers.optcnn import output_splits

METHOD = "flexflow"
TITLE = "FlexFlow"
PROPOSALS = 50_000
BETA = 10_000.0
RETURNS = 100
ASKED_EVERY = 1000


@dataclass(frozen=True)
class Walk:
    """Where a random search came: the best rows, its time in seconds, what was accepted."""

    choices: NDArray[np.uint32]
    time_s: float
    start_s: float
    proposals: int
    accepted: int


def flexflow(
    problem: SearchProblem, progress: Progress, *, proposals: int = PROPOSALS, seed: int = 0
) -> Answer:
    """Returns the fastest strategy that the random search meets, as one point."""
    start = data_parallel_rows(problem).choices
    walk = random_search(problem, output_splits(problem), start, progress, proposals, seed)
    return Answer(
        METHOD,
        TITLE,
        f"random search with Metropolis acceptance from data parallelism, {proposals:,} proposals",
        (evaluate(problem, walk.choices),),
        details={
            "proposals": walk.proposals,
            "accepted": walk.accepted,
            "seed": seed,
            "beta": BETA,
            "start_time_s": walk.start_s,
        },
    )


def random_search(
    problem: SearchProblem,
    allowed: Sequence[NDArray[np.bool_]],
    start: NDArray[np.uint32],
    progress: Progress,
    proposals: int = PROPOSALS,
    seed: int = 0,
    beta: float = BETA,
) -> Walk:
    """Walks from `start` over the allowed configurations; never worse than the start.

    Equal seeds walk alike. Raises `Cancelled` when `progress` returns False.
    """
    random = Random(seed)
    times = [cost.time_s.tolist() for cost in problem.costs]
    options = [np.flatnonzero(mask).tolist() for mask in allowed]
    free = [g for g, rows in enumerate(options) if len(rows) > 1]
    sides = _sides(problem)
    current: list[int] = start.tolist()
    started = now = lowest = evaluate(problem, start).time_s
    best = current.copy()
    accepted = 0
    span = max(proposals // RETURNS, 1)
    for step in range(proposals if free else 0):
        if step % ASKED_EVERY == 0 and not progress("random search", step / proposals):
            raise Cancelled
        if step % span == 0:
            current, now = best.copy(), lowest
        group = random.choice(free)
        row, old = random.choice(options[group]), current[group]
        delta = times[group][row] - times[group][old]
        for table, mine, other, theirs in sides[group]:
            column = theirs[current[other]]
            delta += table[mine[row]][column] - table[mine[old]][column]
        if delta > 0 and random.random() >= exp(-beta * delta / started):
            continue
        accepted += 1
        current[group] = row
        now += delta
        if now < lowest:
            best, lowest = current.copy(), now
    chosen = np.array(best, dtype=np.uint32)
    return Walk(chosen, evaluate(problem, chosen).time_s, started, proposals, accepted)


_Side = tuple[list[list[float]], list[int], int, list[int]]
"""The fastest times of an edge seen from one end: table, my rows, the other group, its columns."""


def _sides(problem: SearchProblem) -> list[list[_Side]]:
    sides: list[list[_Side]] = [[] for _ in problem.costs]
    known: dict[int, tuple[list[list[float]], list[list[float]], list[int], list[int]]] = {}
    for edge in problem.edges:
        table = edge.table
        if id(table) not in known:
            fastest = _fastest(table)
            known[id(table)] = (
                fastest.tolist(),
                fastest.T.tolist(),
                table.rows.tolist(),
                table.columns.tolist(),
            )
        forward, backward, rows, columns = known[id(table)]
        sides[edge.source].append((forward, rows, edge.target, columns))
        sides[edge.target].append((backward, columns, edge.source, rows))
    return sides


def _fastest(table: EdgeTable) -> NDArray[np.float64]:
    """Returns the time of the fastest alternative of every pair, shape (R, C)."""
    exists = np.arange(table.time_s.shape[-1]) < table.count[..., None]
    return np.asarray(np.where(exists, table.time_s, np.inf).min(axis=-1))
