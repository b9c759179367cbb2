"""Whether a preset that does not fit would with shorter sequences: it is captured with them.

Fewer samples are not tried: a batch of half as many in half as many micro-batches holds the same,
and micro-batches are the search's own choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from shardwise.cost.options import Options
from shardwise.documents import Pipeline, Plan
from shardwise.errors import BadInput, NotFound, SolverError
from shardwise.graph import Graph
from shardwise.graph.step import Step, step_of
from shardwise.texts import gib

Ask = Callable[[Graph, Options], Plan | Pipeline]
"""Answers the question about another graph, with other options; raises `NotFound`."""

PARTS = (2, 4)
"""Into how many parts sequences are cut, one after another."""
MOST_S = 10.0
"""Seconds of each search."""
COARSE = 10.0
"""The epsilon of a try: whether something fits is all that it has to say."""


def fewer_tokens(spec: str, options: Options, ask: Ask) -> str:
    """Returns which shorter sequences would fit, with the command that captures them.

    Empty where none does, where the graph is not that of a language model's preset, which alone can
    be captured again, and without the packages that capturing needs.
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
        again = f"shardwise capture {spec} --batch {step.batch} --seq {step.seq} -o graph.json"
        return f"it fits with sequences of {step.seq:,} tokens ({gib(peak)} GiB per GPU): {again}"
    return ""


def _shorter(spec: str) -> Iterator[tuple[Graph, Step]]:
    """Yields a preset with shorter and shorter sequences."""
    from shardwise.capture.shipped import load_graph
    from shardwise.capture.source import parse_preset

    if Path(spec).exists() or parse_preset(spec) is None or find_spec("transformers") is None:
        return
    step = step_of(load_graph(spec))
    if step.seq is None or not step.predicts_tokens:
        return
    from shardwise.capture import capture

    for parts in PARTS:
        if step.seq % parts:
            return
        try:
            graph = capture(spec, batch=step.batch, seq=step.seq // parts, dtype=step.dtype)
        except BadInput:
            return
        yield graph, step_of(graph)
