"""Tofu (Wang et al. 2019): the recursive search of `shardwise.advise.tofu`, as an answer."""

from __future__ import annotations

from shardwise import _core
from shardwise.advise.assemble import SearchProblem
from shardwise.advise.compare.answer import Answer
from shardwise.advise.compare.evaluate import point_of
from shardwise.advise.options import Options, Progress
from shardwise.advise.tofu import tofu as recursion
from shardwise.errors import Cancelled, SolverError

METHOD = "tofu"
TITLE = "Tofu"


def tofu(problem: SearchProblem, options: Options, progress: Progress) -> Answer:
    """The one strategy that moves the fewest bytes with nothing replicated by choice."""
    try:
        found = recursion(problem, options, progress)
    except _core.Cancelled:
        raise Cancelled from None
    except (RuntimeError, TimeoutError) as error:
        raise SolverError(str(error)) from None
    return Answer(
        METHOD,
        TITLE,
        "recursive splits that move the fewest bytes; every tensor split, nothing replicated",
        (point_of(problem, found.choices[0], found.edge_choices[0]),),
        details=found.report(),
    )
