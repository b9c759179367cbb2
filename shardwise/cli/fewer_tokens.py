"""Whether a model that does not fit would with shorter sequences.

Fewer samples are not tried: a batch of half as many in half as many micro-batches holds the same,
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
"""Into how many parts sequences are cut, one after another."""
MOST_S = 10.0
"""Seconds of each search."""
COARSE = 10.0
"""The epsilon of a try: whether something fits is all that it has to say."""


def fewer_tokens(spec: str, options: Options, ask: Ask) -> str:
    """Returns which shorter sequences would fit, with the option that asks for them.

    Empty where none does, and where the graph is no language model's or holds for no others.
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
