"""What does not fit is tried with shorter sequences, and what fits is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardwise.capture import load_graph
from shardwise.cli import fewer_tokens as module
from shardwise.cli.fewer_tokens import fewer_tokens
from shardwise.cost.options import Options
from shardwise.graph import Graph, write_graph
from shardwise.graph.step import step_of
from shardwise.search.search import Infeasible

SPEC = "gpt2"


def fits_with(most: int, asked: list[tuple[int | None, int | None, Options]]) -> Any:
    """Returns what answers that sequences of at most this many tokens fit."""

    def ask(graph: Graph, options: Options) -> Any:
        step = step_of(graph)
        asked.append((step.batch, step.seq, options))
        if step.seq is None or step.seq > most:
            raise Infeasible("too large")
        return SimpleNamespace(predicted=SimpleNamespace(peak_bytes=3 * 2**29))

    return ask


@pytest.mark.parametrize(("most", "seq"), [(512, 512), (300, 256), (100, None)])
@pytest.mark.parametrize(("spec", "batch"), [(SPEC, 64), (f"{SPEC}:batch=9", 9)])
def test_the_longest_that_fit_are_named(most: int, seq: int | None, spec: str, batch: int) -> None:
    asked: list[tuple[int | None, int | None, Options]] = []
    assert step_of(load_graph(spec)).seq == 1024
    text = fewer_tokens(spec, Options(time_limit_s=60.0), fits_with(most, asked))
    if seq is None:
        assert text == ""
    else:
        assert text == f"it fits with sequences of {seq} tokens (1.50 GiB per GPU): --seq {seq}"
    assert [tokens for _, tokens, _ in asked] == ([512] if seq == 512 else [512, 256])
    assert {samples for samples, _, _ in asked} == {batch}
    for _, _, options in asked:
        assert options.time_limit_s == module.MOST_S
        assert options.epsilon == module.COARSE


def test_nothing_is_said_of_a_graph_of_one_length(tmp_path: Path) -> None:
    asked: list[Any] = []
    ask = fits_with(10**6, asked)
    path = tmp_path / "gpt2.json"
    write_graph(load_graph(SPEC), path)
    for spec in (str(path), "shipped:vgg16", "vit-b"):
        assert fewer_tokens(spec, Options(), ask) == ""
    assert not asked
