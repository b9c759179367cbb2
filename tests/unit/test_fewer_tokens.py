"""A preset that does not fit is captured with shorter sequences, and what fits is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardwise.capture import load_graph
from shardwise.cli import fewer_tokens as module
from shardwise.cli.fewer_tokens import fewer_tokens
from shardwise.cost.options import Options
from shardwise.errors import CaptureError
from shardwise.graph import Graph, write_graph
from shardwise.graph.step import Step, step_of
from shardwise.search.search import Infeasible

SPEC = "gpt2"


class Captured:
    """Stands for captures: the shipped graph, said to have the sequences that were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int, str]] = []
        self.own = load_graph(SPEC)
        monkeypatch.setattr("shardwise.capture.capture", self.capture)
        monkeypatch.setattr(module, "find_spec", lambda name: object())
        monkeypatch.setattr(module, "step_of", self.step_of)

    def capture(self, spec: str, *, batch: int, seq: int, dtype: str) -> Graph:
        assert spec == SPEC
        self.asked.append((batch, seq, dtype))
        return replace(self.own, name=str(seq))

    def step_of(self, graph: Graph) -> Step:
        step = step_of(graph)
        return replace(step, seq=int(graph.name)) if graph.name.isdecimal() else step


def fits_with(most: int, tried: list[Options]) -> Any:
    """Returns what answers that sequences of at most this many tokens fit."""

    def ask(graph: Graph, options: Options) -> Any:
        tried.append(options)
        if int(graph.name) > most:
            raise Infeasible("too large")
        return SimpleNamespace(predicted=SimpleNamespace(peak_bytes=3 * 2**29))

    return ask


@pytest.mark.parametrize(("most", "seq"), [(512, 512), (300, 256), (100, None)])
def test_the_longest_that_fit_are_named(
    monkeypatch: pytest.MonkeyPatch, most: int, seq: int | None
) -> None:
    captured, tried = Captured(monkeypatch), list[Options]()
    step = step_of(captured.own)
    assert step.seq == 1024
    text = fewer_tokens(SPEC, Options(time_limit_s=60.0), fits_with(most, tried))
    if seq is None:
        assert text == ""
    else:
        again = f"shardwise capture gpt2 --batch {step.batch} --seq {seq} -o graph.json"
        assert text == f"it fits with sequences of {seq} tokens (1.50 GiB per GPU): {again}"
    assert [s for _, s, _ in captured.asked] == ([512] if seq == 512 else [512, 256])
    assert {(b, d) for b, _, d in captured.asked} == {(step.batch, step.dtype)}
    assert all(one.time_limit_s == module.MOST_S and one.epsilon == module.COARSE for one in tried)


def test_nothing_is_said_of_what_cannot_be_captured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    captured, tried = Captured(monkeypatch), list[Options]()
    ask = fits_with(10**6, tried)
    path = tmp_path / "gpt2.json"
    write_graph(captured.own, path)
    for spec in (str(path), "shipped:vgg16", "vit-b"):
        assert fewer_tokens(spec, Options(), ask) == ""
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert fewer_tokens(SPEC, Options(), ask) == ""
    assert not captured.asked and not tried

    def refused(*given: Any, **more: Any) -> Graph:
        raise CaptureError("no")

    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr("shardwise.capture.capture", refused)
    assert fewer_tokens(SPEC, Options(), ask) == ""
