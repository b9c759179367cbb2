"""Named strategies: the simplest within the tolerance, and those that a frontier names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from harness.models.shortened import shortened
from shardwise.answers import Options, explain, frontier, plan
from shardwise.answers.curve import curve_point
from shardwise.answers.explain import strategy_text
from shardwise.cli import advice
from shardwise.documents import Frontier, Plan
from shardwise.documents.curve import CurvePoint
from shardwise.documents.frontier import MOST_NAMED, WITHIN
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.search.search import Subject

H100 = load_hardware("dgx-h100")
FASTEST = Options(micro_batches=(1,), simplest="never", framework="eager")


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return shortened("gpt2", 1)


@pytest.fixture(scope="module")
def fastest(gpt2: Graph) -> Plan:
    return plan(gpt2, H100, 8, options=FASTEST)


# The simplest


@pytest.mark.parametrize(("epsilon", "label"), [(0.01, "FSDP 8"), (0.05, "DP 8")])
def test_the_simplest_within_the_tolerance(
    gpt2: Graph, fastest: Plan, epsilon: float, label: str
) -> None:
    options = replace(FASTEST, epsilon=epsilon, simplest="auto")
    answer = plan(gpt2, H100, 8, options=options)
    predicted, faster = answer.predicted, answer.predicted.faster
    assert predicted.label == label
    [part] = predicted.mixtures or []
    assert (part.label, part.parameters, part.compute) == (
        label,
        pytest.approx(1),
        pytest.approx(1),
    )
    # What is proven is proven of this answer.
    assert faster and answer.certificate.epsilon == predicted.gap
    assert predicted.gap is not None and faster.saves < predicted.gap <= epsilon
    assert answer.certificate.status == "within_epsilon"
    bound = answer.certificate.time_lower_bound_s
    assert bound and predicted.replayed_time_s == pytest.approx(bound * (1 + predicted.gap))
    assert faster.replayed_time_s == pytest.approx(fastest.predicted.replayed_time_s, rel=1e-3)
    said = f"{label}; {faster.saves:.1%} faster is possible: DP 8 (ZeRO-1), see explain"
    assert strategy_text(predicted) == explain(answer).text[0] == said


def test_points_of_curves_are_the_simplest_too(gpt2: Graph, fastest: Plan) -> None:
    def point(**others: Any) -> CurvePoint:
        return curve_point(Subject.of(gpt2), H100, 8, replace(FASTEST, **others))[0]

    simple, quickest = point(epsilon=0.05, simplest="auto"), point()
    assert simple.label == "DP 8" != quickest.label
    assert quickest.replayed_time_s == pytest.approx(fastest.predicted.replayed_time_s, rel=1e-3)
    assert simple.replayed_time_s and quickest.replayed_time_s
    assert 1.0 < simple.replayed_time_s / quickest.replayed_time_s <= 1.05
    assert simple.gap is not None and simple.gap <= 0.05


def test_never_and_no_tolerance_give_the_fastest(gpt2: Graph, fastest: Plan) -> None:
    exact = plan(gpt2, H100, 8, options=replace(FASTEST, epsilon=0.0, simplest="auto"))
    assert not fastest.predicted.faster and not exact.predicted.faster
    assert exact.predicted.replayed_time_s <= fastest.predicted.replayed_time_s
    assert len(fastest.predicted.mixtures or []) > 1
    [line] = [line for line in explain(fastest).text if line.startswith("Of it: ")]
    assert "DP 8 (ZeRO-1) " in line and "% of parameters" in line


# What a frontier names


@pytest.fixture(scope="module")
def of_gpt2(gpt2: Graph) -> Frontier:
    return frontier(gpt2, H100, 8, Options(micro_batches=(1, 2), epsilon=0.2))


def test_a_frontier_names_strategies_to_decide_between(of_gpt2: Frontier) -> None:
    named = of_gpt2.named or []
    labels = [one.label for one in named]
    assert 5 <= len(named) <= MOST_NAMED < len(of_gpt2.points)
    assert len(set(labels)) == len(labels)
    assert all(len(label.split(", ")) <= 3 and "%" not in label for label in labels)
    assert {"DP 8", "DP 8 (ZeRO-1)", "FSDP 8"} <= set(labels)
    times = [one.replayed_time_s for one in named]
    assert times == sorted(times) and times[-1] <= times[0] * (1 + WITHIN)
    assert max(one.replayed_peak_bytes for one in named) <= of_gpt2.memory_limit_bytes
    assert min(one.more_bytes for one in named) == named[0].slower == 0
    fitting = [point.replayed_time_s for point in of_gpt2.points if point.feasible]
    assert times[0] <= min(fitting) * (1 + 1e-3)


def test_points_of_one_label_say_what_differs(of_gpt2: Frontier) -> None:
    seen: set[object] = set()
    for point in of_gpt2.points:
        assert bool(point.differs) == (point.label in seen)
        if point.differs:
            assert point.differs.startswith("other ") and point.differs[-1].isdigit()
        seen.add(point.label)
    assert len(seen) < len(of_gpt2.points), "some label is of several points"


@pytest.mark.parametrize("every", [False, True])
def test_the_named_are_printed_and_all_on_request(
    of_gpt2: Frontier, every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def advisor(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(frontier=lambda *_: of_gpt2)

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(advice, "advisor", advisor)
    arguments = ["shipped:gpt2", "--hardware", "dgx-h100", "--gpus", "8", "--quiet"]
    done = CliRunner().invoke(
        advice.frontier, arguments + ["--all"] * every, catch_exceptions=False
    )
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    [head] = [at for at, row in enumerate(rows) if row.startswith(("strategy step", "point peak"))]
    end = next(at for at, row in enumerate(rows) if row.startswith("Program"))
    table = rows[head + 1 : end]
    if every:
        assert len(table) == len(of_gpt2.points)
        assert sum("(other " in row for row in table) == sum(
            bool(p.differs) for p in of_gpt2.points
        )
        return
    named = of_gpt2.named or []
    assert all(row.startswith(one.label) for row, one in zip(table, named, strict=False))
    assert table[-1].startswith("turning point of all: ") and len(table) == len(named) + 1
    assert "of the step" in table[-2]
