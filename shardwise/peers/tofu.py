"""Tofu (Wang et al. 2019): the recursive search of `shardwise.search.tofu`, as an answer."""

from __future__ import annotations

from msgspec import to_builtins

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Options, Progress
from shardwise.peers.answer import Answer
from shardwise.peers.evaluate import point_of
from shardwise.search.solver_errors import solver_errors
from shardwise.search.tofu import tofu as recursion

METHOD = "tofu"
TITLE = "Tofu"


def tofu(problem: SearchProblem, options: Options, progress: Progress) -> Answer:
    """Returns the one strategy that moves the fewest bytes with nothing replicated by choice."""
    with solver_errors():
        solution = recursion(problem, options, progress)
    return Answer(
        METHOD,
        TITLE,
        "recursive splits that move the fewest bytes; every tensor split, nothing replicated",
        (point_of(problem, solution.choices[0], solution.edge_choices[0]),),
        details=to_builtins(solution.report()),
    )
