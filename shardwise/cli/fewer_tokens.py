"""Tries whether a model that does not fit would with shorter sequences.

Smaller batches are not tried: half the batch in half as many micro-batches takes the same memory,
and micro-batches are the search's own choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardwise.cost.options import Options
from shardwise.documents import Plan
from shardwise.errors import BadInput, NotFound, SolverError
from shardwise.graph import Graph
from shardwise.graph.step import Step, step_of
from shardwise.step_sizes import split_sizes
from shardwise.texts import gib

Ask = Callable[[Graph, Options], Plan]
"""Answers the question about another graph, with other options; raises `NotFound`."""

PARTS = (2, 4)
"""Divisors of the sequence length, tried in turn."""
MOST_S = 10.0
"""Time limit of each search, in seconds."""
COARSE = 10.0
"""The epsilon of a try, which only decides whether something fits."""


def fewer_tokens(spec: str, options: Options, ask: Ask) -> str:
    """Returns the shorter sequences that would fit, with the option for them.

    Empty if none does, if the graph is no language model's, or if it holds for no other lengths.
    """
    options = replace(
        options,
        epsilon=max(COARSE, options.epsilon),
        time_limit_s=min(MOST_S, options.time_limit_s or MOST_S),
    )
    for graph, step in _shorter(spec):
        try:
            peak = ask(graph, options).predicted.peak_bytes
        except (NotFound, SolverError):
            continue
        return (
            f"it fits with sequences of {step.seq:,} tokens ({gib(peak)} GiB per GPU): "
            f"--seq {step.seq}"
        )
    return ""


def _shorter(spec: str) -> Iterator[tuple[Graph, Step]]:
    """Yields a language model with shorter and shorter sequences, as far as its graph holds for
    them or its preset can be captured."""
    from shardwise.capture.shipped import load_graph

    step = step_of(load_graph(spec))
    if step.seq is None or not step.predicts_tokens:
        return
    plain, sizes = split_sizes(spec)
    for parts in PARTS:
        if step.seq % parts:
            return
        try:
            graph = load_graph(plain, batch=sizes.batch, seq=step.seq // parts)
        except BadInput:
            return
        yield graph, step_of(graph)
