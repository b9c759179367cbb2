"""Rules on stages: cuts that have to be or may not be, and the stages that may have a unit."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from shardwise.answers import Options, plan
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.cost.options import quiet
from shardwise.cost.pins import parse_pin
from shardwise.documents import Pipeline
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Devices, load_hardware
from shardwise.search.pipelines.rules import rules_of
from shardwise.search.pipelines.search import Fastest, PipelineSearch
from shardwise.search.pipelines.staged import Staged
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units

L4 = load_hardware("l4")
OPTIONS = Options(micro_batches=(8,))


def ruled(*rules: str) -> Options:
    return replace(OPTIONS, pins=tuple(map(parse_pin, rules)))


def searched(whole: Graph, staged: StagedSubject, stages: int, *rules: str) -> tuple[int, ...]:
    """The cuts of the fastest pipeline on four L4 that follows the rules, by the names behind."""
    search = PipelineSearch(whole, L4, Devices.alike(4), ruled(*rules), quiet, ("1f1b",), staged)
    best = search.fastest([stages]).pipeline
    assert best is not None
    names = Units.of(staged.subject.patterns).names
    return tuple(names.index(best.units.names[cut]) for cut in best.bounds[1:-1])


def test_a_cut_is_where_it_has_to_be(whole: Graph, staged: StagedSubject) -> None:
    """Unit 1 is layer 0; without rules the cut is before layer 7 or so."""
    free = searched(whole, staged, 2)
    assert free not in {(3,), (11,)}
    assert searched(whole, staged, 2, "transformer.h.2:cut=before") == (3,)
    assert searched(whole, staged, 2, "transformer.h.9:cut=after") == (11,)
    cuts = searched(whole, staged, 4, "transformer.h.2:cut=before", "transformer.h.9:cut=after")
    assert {3, 11} <= set(cuts)


def test_a_cut_is_not_where_it_may_not_be(whole: Graph, staged: StagedSubject) -> None:
    (free,) = searched(whole, staged, 2)
    (moved,) = searched(whole, staged, 2, f"transformer.h.{free - 1}:cut!=before")
    assert moved != free


def test_units_are_in_the_stages_that_may_have_them(whole: Graph, staged: StagedSubject) -> None:
    (cut,) = searched(whole, staged, 2, "transformer.h.3:stage=last")
    assert cut <= 4
    (cut,) = searched(whole, staged, 2, "transformer.h.9:stage!=1")
    assert cut >= 11
    cuts = searched(whole, staged, 4, "transformer.h.[0-8]:stage=0,1")
    assert cuts[1] >= 10


@pytest.mark.parametrize("stages", [2, 3])
def test_what_is_allowed_is_what_the_rules_say(
    staged: StagedSubject, units: Units, stages: int
) -> None:
    """Of all cuts, those that `allow` leaves against the words of the rules."""
    pins = [
        parse_pin(rule)
        for rule in (
            "transformer.h.4:cut=before",
            "transformer.h.7:cut!=after",
            "transformer.h.6:stage!=0",
            "transformer.h.11:stage=1,last",
        )
    ]
    rules, joined = rules_of(pins, staged.subject.coarsened, units)
    back = [units.names.index(name) for name in joined.names] + [len(units)]
    allowed = set()
    for inner in combinations(range(1, len(joined)), stages - 1):
        bounds = (0, *inner, len(joined))
        if all(rules.allow(stages, s, i, j) for s, (i, j) in enumerate(pairwise(bounds))):
            allowed.add(tuple(back[cut] for cut in inner))
    expected = set()
    for inner in combinations(range(1, len(units)), stages - 1):

        def stage_of(unit: int, cuts: tuple[int, ...] = inner) -> int:
            return sum(cut <= unit for cut in cuts)

        if 5 in inner and 9 not in inner and stage_of(7) != 0 and stage_of(12) in {1, stages - 1}:
            expected.add(inner)
    assert allowed == expected


def test_a_bound_is_that_of_pipelines_that_the_rules_allow(
    whole: Graph, staged: StagedSubject
) -> None:
    """A cut after two layers makes a long second stage, and no answer without it is near."""

    def answered(*rules: str) -> Fastest:
        return PipelineSearch(
            whole, L4, Devices.alike(4), ruled(*rules), quiet, ("1f1b",), staged
        ).fastest([2])

    free, pinned = answered(), answered("transformer.h.2:cut=before")
    assert free.pipeline is not None and pinned.pipeline is not None
    assert pinned.least_s > 1.2 * free.pipeline.step_s
    assert pinned.least_s <= pinned.pipeline.step_s < 1.06 * pinned.least_s
    staged_last = answered("transformer.h.3:stage=last")
    assert staged_last.pipeline is not None
    assert 1.2 * free.least_s < staged_last.least_s <= staged_last.pipeline.step_s


def test_an_interleaved_bound_knows_the_rules(whole: Graph, staged: StagedSubject) -> None:
    def least_s(*rules: str) -> float:
        search = PipelineSearch(
            whole, L4, Devices.alike(4), ruled(*rules), quiet, ("interleaved:2",), staged
        )
        (question,) = search.questions([2])
        return Staged(question, quiet, (1.0,)).least_s()

    assert least_s("transformer.h.8:stage=0") > 1.2 * least_s()


def test_the_answer_is_a_pipeline_where_a_rule_is_about_stages(whole: Graph) -> None:
    """Without a pipeline GPT-2 is faster on four L4."""
    options = ruled("transformer.h.6:cut=before")
    answer = pipeline_or_plan(whole, L4, 4, stages=[1, 2], schedules=["1f1b"], options=options)
    assert isinstance(answer, Pipeline)
    assert answer.stages[1].first_unit.endswith("h.6")


def test_what_is_refused(whole: Graph) -> None:
    with pytest.raises(BadInput, match="applies only to pipelines") as refused:
        plan(whole, L4, 4, options=ruled("transformer.h.6:cut=before"))
    assert refused.value.field == "pin"
    for rule, words in (
        ("transformer.h.99:cut=before", "matches no operator"),
        ("transformer.wte:cut=before", "begins or ends there"),
    ):
        with pytest.raises(BadInput, match=words):
            pipeline_or_plan(whole, L4, 4, stages=[2], options=ruled(rule))
    with pytest.raises(BadInput, match="contradict each other"):
        both = ruled("transformer.h.6:cut=before", "transformer.h.5:cut!=after")
        pipeline_or_plan(whole, L4, 4, stages=[2], options=both)
    with pytest.raises(BadInput, match="2 stages of 4 devices"):
        pipeline_or_plan(whole, L4, 4, stages=[2], options=ruled("transformer.h.6:stage=2"))
    with pytest.raises(BadInput, match="no number of stages"):
        never = ruled("transformer.h.6:stage=0", "transformer.h.6:stage=1")
        pipeline_or_plan(whole, L4, 4, options=never)
    for rule in ("h.6:stage=first", "h.6:stage=-1", "h.6:cut=here", "cut=before", "stage=0"):
        with pytest.raises(BadInput):
            parse_pin(rule)
