"""Comparisons by replayed steps: what practitioners run, and that our answer is never slower."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from harness.models.comparison_models import hardware, residual_block
from harness.strategies import problem_of
from shardwise import documents
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cli.compare import _tables
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import quiet
from shardwise.errors import Cancelled
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware
from shardwise.peers import compare
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.evaluate import evaluate, steps_of
from shardwise.peers.megatron import megatron
from shardwise.peers.methods import IN_CONTEXT, METHODS
from shardwise.peers.practitioners import (
    Practice,
    best_of_counts,
    practitioners,
    replayed,
)
from shardwise.pictures.compare import compare_picture
from shardwise.replay.replay import Replayer

COUNTS = (1, 2, 4)
RECOMPUTATIONS = ("", "selective recompute", "full recompute")

WITHOUT_CONTEXT = set(METHODS) - set(IN_CONTEXT)
"""Context parallelism is for fewer samples than devices, which no question here has."""


@pytest.fixture(scope="module")
def problem(gpt2: Graph) -> SearchProblem:
    """GPT-2 on two nodes of four, everything allowed."""
    machine = load_hardware("dgx-h100").with_devices_per_node(4)
    return problem_of(gpt2, machine, 8, Options())


@pytest.fixture(scope="module")
def known(problem: SearchProblem) -> dict[tuple[str, str], Practice]:
    return {one.key: one for one in practitioners(problem) if not one.lean}


@pytest.fixture(scope="module")
def document(gpt2: Graph) -> Any:
    options = Options(micro_batches=(1, 4))
    return compare(gpt2, load_hardware("dgx-h100"), 8, options, proposals=500)


def of_rows(problem: SearchProblem, practice: Practice, field: str) -> np.ndarray:
    """Returns a figure of the row that every group takes."""
    pairs = zip(problem.costs, practice.choices, strict=True)
    return np.array([getattr(cost, field)[k] for cost, k in pairs])


def assignments(problem: SearchProblem, practice: Practice) -> list[bytes]:
    pairs = zip(problem.costs, practice.choices, strict=True)
    return [cost.assignment[k].tobytes() for cost, k in pairs]


# The strategies


def test_every_strategy_has_a_name_of_its_own(problem: SearchProblem) -> None:
    made = practitioners(problem)
    assert len({(one.key, one.lean) for one in made}) == len(made)
    for one in made:
        for other in made:
            assert one is other or one.key != other.key or one.content != other.content
    assert {one.method for one in made} == WITHOUT_CONTEXT


def test_each_method_is_there_with_each_recomputation(
    known: dict[tuple[str, str], Practice],
) -> None:
    for method, labels in (
        ("data-parallel", ("",)),
        ("zero", ("zero-1", "zero-2")),
        ("fsdp", ("",)),
        ("hsdp", ("",)),
        ("megatron", ("dp4·tp2", "dp2·tp4·zero-1", "dp1·tp8", "dp4·tp2·zero-3")),
    ):
        for label in labels:
            for recompute in RECOMPUTATIONS:
                assert (method, "·".join(filter(None, (label, recompute)))) in known


def test_stages_shard_everywhere_or_inside_a_node(
    problem: SearchProblem, known: dict[tuple[str, str], Practice]
) -> None:
    node = sum(
        1 << a for a, axis in enumerate(problem.context.mesh.axes) if axis.level == "inside a node"
    )
    everywhere = (1 << len(problem.context.mesh.axes)) - 1
    assert 0 < node < everywhere
    # A gradient that needs no sum may as well be cut at once: ZeRO 2 beats ZeRO 1.
    [table] = (g.index for g in problem.coarsened.groups if "wpe" in g.name)
    for key, stage, axes in (
        (("data-parallel", ""), 0, 0),
        (("zero", "zero-1"), 1, everywhere),
        (("zero", "zero-2"), 2, everywhere),
        (("fsdp", ""), 3, everywhere),
        (("hsdp", ""), 3, node),
    ):
        zero = of_rows(problem, known[key], "zero")
        assert zero[table] in {stage, 2 * stage}
        assert set(np.delete(zero, table).tolist()) == {0, stage}
        assert set(of_rows(problem, known[key], "zero_axes")[zero > 0].tolist()) <= {axes}
    plain = assignments(problem, known["data-parallel", ""])
    assert plain == assignments(problem, known["hsdp", "full recompute"])


def test_data_parallelism_is_that_of_splits(
    gpt2: Graph, problem: SearchProblem, known: dict[tuple[str, str], Practice]
) -> None:
    splits = problem_of(gpt2, problem.context.hardware, 8, Options(zero=(0,), recompute="never"))
    point = evaluate(splits, data_parallel_rows(splits).choices)
    (expected,) = steps_of(Replayer(splits, Options().step), [point.choices], [point.edge_choices])
    one = known["data-parallel", ""]
    (step,) = steps_of(Replayer(problem, Options().step), [one.choices], [one.edge_choices])
    assert step == expected


def test_what_runs_again(problem: SearchProblem, known: dict[tuple[str, str], Practice]) -> None:
    """Full: what is in a block. Selective: of that what multiplies by no weights."""
    segments = problem.context.segments
    groups = problem.coarsened.groups
    block = np.array([segments.count(segments[g.index]) > 1 for g in groups])
    weights = np.array([g.anchor.operator.kind == "aten.addmm.default" for g in groups])
    attention = np.array(["attention" in g.anchor.operator.kind for g in groups])
    # A group that keeps nothing has nothing to run again for.
    can = np.array([bool(cost.recompute.any()) for cost in problem.costs])
    assert (attention & block & can).any() and (weights & block & can).any()
    for method, prefix in (("fsdp", ""), ("megatron", "dp4·tp2·")):
        full = of_rows(problem, known[method, f"{prefix}full recompute"], "recompute")
        selective = of_rows(problem, known[method, f"{prefix}selective recompute"], "recompute")
        assert (full == (block & can)).all()
        assert (selective == (block & can & ~weights)).all()
        assert not of_rows(problem, known[method, prefix.removesuffix("·")], "recompute").any()


def test_megatron_splits_as_its_least_sum_does(
    gpt2: Graph, problem: SearchProblem, known: dict[tuple[str, str], Practice]
) -> None:
    splits = problem_of(gpt2, problem.context.hardware, 8, Options(zero=(0,), recompute="never"))
    points = {p.label: p for p in megatron(splits, splits.context.options, quiet).points}
    expected = [
        cost.assignment[k].tobytes()
        for cost, k in zip(splits.costs, points["dp2·tp4"].choices, strict=True)
    ]
    for label in ("dp2·tp4", "dp2·tp4·zero-1", "dp2·tp4·zero-3·full recompute"):
        assert assignments(problem, known["megatron", label]) == expected


@pytest.mark.parametrize(
    ("options", "methods", "recomputations"),
    [
        (Options(recompute="never"), WITHOUT_CONTEXT, {""}),
        (Options(recompute="always"), WITHOUT_CONTEXT, {"full recompute"}),
        (Options(zero=(0,)), {"data-parallel", "megatron"}, set(RECOMPUTATIONS)),
        (
            Options(zero=(2, 3), recompute="never"),
            WITHOUT_CONTEXT - {"data-parallel"},
            {""},
        ),
    ],
    ids=["never", "always", "no-zero", "zero"],
)
def test_what_the_options_forbid_is_left_out(
    gpt2: Graph, options: Options, methods: set[str], recomputations: set[str]
) -> None:
    machine = load_hardware("dgx-h100").with_devices_per_node(4)
    narrow = problem_of(gpt2, machine, 8, options)
    made = practitioners(narrow)
    assert {one.method for one in made} == methods
    ended = {word for one in made for word in RECOMPUTATIONS if one.label.endswith(word)}
    assert ended - {""} == recomputations - {""}
    for one in made:
        stages = set(of_rows(narrow, one, "zero").tolist())
        assert stages <= {0, *options.zero}
        assert one.label.endswith("recompute") or "" in recomputations


def test_a_micro_batch_needs_a_sample_for_every_share() -> None:
    """Eight samples in four micro-batches: two for each, which data parallelism on four lacks."""
    graph, machine = residual_block(batch=8), hardware(2)
    made = practitioners(problem_of(graph, machine, 4, Options()))
    assert {one.method for one in made} == WITHOUT_CONTEXT
    few = practitioners(problem_of(graph, machine, 4, Options(), 4))
    assert {one.label.partition("·zero")[0] for one in few} <= {
        f"dp{dp}·tp{tp}{again}"
        for dp, tp in ((2, 2), (1, 4))
        for again in ("", "·selective recompute", "·full recompute")
    }
    document = compare(graph, machine, 4, Options(micro_batches=(4,)), proposals=10)
    reasons = {method.method: method.reason for method in document.methods}
    assert "fewer samples" in (reasons["fsdp"] or "")
    assert reasons["megatron"] is None


def test_the_best_number_is_the_fastest_that_fits(gpt2: Graph) -> None:
    machine = load_hardware("dgx-h100")
    replayers = [
        Replayer(problem_of(gpt2, machine, 4, Options(), count), Options().step) for count in COUNTS
    ]
    every = {
        (count, one.practice.key, one.practice.lean): one.step
        for count, replayer in zip(COUNTS, replayers, strict=True)
        for one in replayed(replayer, practitioners(replayer.problem), 0.0)
    }
    for limit in (2**40, 6 * 2**30, 2**20):
        best = best_of_counts(replayers, limit)
        assert len({one.practice.key for one in best}) == len(best)
        for one in best:
            steps = [step for (_, key, _), step in every.items() if key == one.practice.key]
            fitting = [step.time_s for step in steps if step.peak_bytes <= limit]
            if fitting:
                assert one.step.time_s == min(fitting)
            else:
                assert one.step.peak_bytes == min(step.peak_bytes for step in steps)
    numbers = {one.step.micro_batches for one in best_of_counts(replayers, 6 * 2**30)}
    assert len(numbers) > 1


# The document


def test_our_answer_is_never_slower(document: Any) -> None:
    methods = {method.method: method for method in document.methods}
    assert list(methods) == [
        "data-parallel",
        "zero",
        "fsdp",
        "megatron",
        "optcnn",
        "flexflow",
        "tofu",
        "mesh-tensorflow",
        "shardwise-splits",
        "shardwise",
    ]
    (ours,) = methods["shardwise"].points
    assert ours.slower_by == 0.0 and ours.feasible
    assert document.micro_batches == ours.micro_batches
    gap = methods["shardwise"].epsilon
    assert document.certificate and document.certificate.epsilon == gap is not None
    for method in document.methods:
        for point in method.points:
            assert isinstance(point.replayed_time_s, float)
            assert isinstance(point.slower_by, float)
            assert point.micro_batches in COUNTS
            assert point.our_time_s == ours.replayed_time_s
            assert point.slower_by == pytest.approx(point.replayed_time_s / point.our_time_s - 1.0)
            assert point.feasible == (point.replayed_peak_bytes <= document.memory_limit_bytes)
            assert point.slower_by >= 0.0 or not point.feasible, (method.method, point.label)


def test_ranks_follow_the_replayed_time(document: Any) -> None:
    times = {m.method: m.points[m.best].replayed_time_s for m in document.methods if m.points}
    assert [times[method] for method in document.ranking] == sorted(times.values())
    assert document.ranking[0] == "shardwise"
    for method in document.methods:
        fitting = [point.replayed_time_s for point in method.points if point.feasible]
        assert times[method.method] == min(fitting)
    ratio = document.data_parallel_over_mini_time
    assert ratio["all"] == pytest.approx(times["data-parallel"] / times["shardwise"])
    assert ratio["splits"] == pytest.approx(times["data-parallel"] / times["shardwise-splits"])


def test_a_frontier_falls_in_replayed_time(document: Any) -> None:
    for method in document.methods:
        if method.frontier:
            steps = [(p.replayed_peak_bytes, -p.replayed_time_s) for p in method.points]
            assert steps == sorted(steps)


def test_it_is_what_its_schema_says(document: Any) -> None:
    members = json.loads(msgspec.json.encode(document))
    jsonschema.validate(members, documents.json_schema("compare"))
    again = documents.read(members, documents.Comparison)
    assert again == document
    assert members["overlap"] is True


def test_the_table_shows_steps_and_peaks(
    document: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # no cell wraps
    _tables(document)
    lines = capsys.readouterr().out.splitlines()
    systems = [line for line in lines if line.split("  ")[0] in {m.title for m in document.methods}]
    assert len(systems) == len(document.methods)
    assert systems[0].startswith("This system")
    ours = document.methods[-1].points[0]
    assert f"{ours.replayed_peak_bytes / 2**30:.2f}" in systems[0]
    assert any(line.startswith("Proven: no strategy that fits saves more") for line in lines)
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!doctype")):
        path = tmp_path / f"picture{suffix}"
        compare_picture(document).write(str(path))
        assert path.read_bytes().startswith(start)
    drawn = (tmp_path / "picture.html").read_text("utf-8")
    assert "proven: no strategy here" in drawn
    assert "peak memory per GPU" in drawn


def test_nothing_fits() -> None:
    options = Options(micro_batches=(1, 2), memory_limit_bytes=1e6)
    document = compare(residual_block(), hardware(2), 4, options, proposals=10)
    assert document.ranking == []
    assert set(document.data_parallel_over_mini_time.values()) == {None}
    for method in document.methods:
        assert method.best is None
        assert all(p.slower_by is None and not p.feasible for p in method.points)


def test_who_is_out_of_memory_says_so() -> None:
    options = Options(micro_batches=(1,), epsilon=0.5, search_memory_bytes=16 * 2**20)
    vgg16 = read_graph(shipped_graph("vgg16"))
    document = compare(vgg16, load_hardware("dgx-v100-16gb"), 4, options, proposals=10)
    for method in document.methods:
        assert bool(method.points) != bool(method.reason)
    assert document.methods[0].points and document.methods[-1].points


def test_without_zero_there_are_splits_alone() -> None:
    options = Options(zero=(0,), recompute="never", micro_batches=(1, 2))
    document = compare(residual_block(), hardware(2), 4, options, proposals=10)
    assert {method.space for method in document.methods} == {"splits"}
    forbidden = compare(residual_block(), hardware(2), 4, replace(options, zero=(3,)))
    assert [m.method for m in forbidden.methods] == ["fsdp", "hsdp", "megatron", "shardwise"]


@pytest.mark.parametrize(
    "stage", ["practitioners", "OptCNN", "FlexFlow", "Tofu", "Mesh-TensorFlow: mesh 2"]
)
def test_it_can_be_cancelled(stage: str) -> None:
    with pytest.raises(Cancelled):
        compare(
            residual_block(),
            hardware(2),
            4,
            Options(micro_batches=(1,)),
            progress=lambda name, fraction: not name.startswith(stage),
        )
