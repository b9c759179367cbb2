"""The search problem in which a peer's strategies lie: splits alone, or ZeRO and recomputation.

A search drops configurations that others beat in both costs (`configurations.py`), so the plain
strategy of data parallelism is not among the configurations of a search with ZeRO. Each peer is
therefore priced on a problem that holds what it does and nothing else; graph, mesh, hardware
profile and formulas are those of the search.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.cost.assemble import SearchProblem, assemble
from shardwise.cost.options import Progress, quiet
from shardwise.search.search import Search


def splits_only(search: Search, progress: Progress = quiet) -> SearchProblem:
    """Returns the problem of a search without ZeRO, recomputation and pins."""
    return problem_with(search, (0,), "never", progress)


def problem_with(
    search: Search, zero: tuple[int, ...], recompute: str, progress: Progress = quiet
) -> SearchProblem:
    """Returns the problem of a search with these ZeRO stages and this recomputation, and without
    pins."""
    options = search.options
    wanted = replace(options, zero=zero, recompute=recompute, pins=())
    if (options.zero, options.recomputation, options.pins) == (zero, recompute, ()):
        return search.problem
    micro_batches = search.problem.context.micro_batches
    variant = search.subject.variant(options, micro_batches)
    return assemble(variant, search.hardware, search.mesh, wanted, progress, micro_batches)
