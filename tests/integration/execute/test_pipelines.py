"""Pipelines on ranks: what they compute, store and save, and what is refused or lost."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import shardwise  # noqa: E402
from harness.answers import document  # noqa: E402
from harness.execute import pipeline_checkpoints, pipeline_sweep  # noqa: E402
from harness.execute.bounds import TOLERANCE  # noqa: E402
from harness.execute.keeper import SharedRanks, keeper  # noqa: E402
from harness.execute.pipeline_module import (  # noqa: E402
    a_batch,
    a_graph,
    a_module,
    pipelines,
    trained_until_lost,
)
from harness.execute.pipeline_sweep import FAMILIES  # noqa: E402
from harness.execute.pipelines import Pipelines  # noqa: E402
from harness.execute.remembered import parallelize  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise.answers import Options, pipeline_or_plan  # noqa: E402
from shardwise.documents import Pipeline  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402
from shardwise.execute.checkpoint import load, save  # noqa: E402
from shardwise.execute.parameters import clip_grad_norm_  # noqa: E402
from shardwise.execute.pipeline import module as pipeline_module  # noqa: E402
from shardwise.execute.pipeline import runner  # noqa: E402
from shardwise.hardware import load_hardware  # noqa: E402

pytestmark = pytest.mark.torch


def swept(*arguments: str) -> list[dict[str, Any]]:
    """Returns the results of `pipeline_sweep.py` with these arguments."""
    return list(keeper().run(pipeline_sweep.listed, *arguments))


# Ranks:stages:first seed:after the last. Seeds take turns in schedules, ZeRO stages, micro-batches.
# Those of `make test` have 2 or 8 micro-batches: each number is a capture of each family.
QUICK = "2:2:6:7,4:2:4:6,4:4:7:8"
MORE = "2:2:0:6,4:2:0:10,4:4:0:6,8:2:2:5,8:4:2:8"


@pytest.mark.parametrize("cases", some([QUICK, MORE], lambda cases: cases == QUICK))
def test_random_pipelines_compute_what_one_device_computes(cases: str) -> None:
    lines = swept("--cases", cases, "--steps", "2")
    assert {line["family"] for line in lines} == {"MLP", "GPT-2", "T5"}
    for line in lines:
        assert "failed" not in line, line
        assert max(line[kind] for kind in ("loss", "gradient", "parameter")) <= TOLERANCE, line
    assert {line["schedule"] for line in lines} == {"gpipe", "1f1b", "1f1b-eager"}
    assert set().union(*(line["zero"] for line in lines)) == {0, 1, 2, 3}
    assert any(line["recompute"] for line in lines)
    assert any(len(set(line["stages"])) > 1 for line in lines)


# Then schedule and stages per rank.
SEVERAL = "2:4:6:7:interleaved:2,4:4:3:4:interleaved:2"
SPLIT = "2:2:6:7:zb-h1:1,4:4:3:4:zbv:2"
MORE_OF_SEVERAL = "4:4:0:8:interleaved:2,2:4:3:9:interleaved:2,8:4:2:4:interleaved:2"
MORE_SPLIT = "4:2:0:6:zb-h1:1,4:4:0:8:zbv:2,4:4:1:3:zb-h1:2,8:4:2:5:zb-h1:1,8:4:3:4:zbv:2"
DEEP = (
    "4:8:0:3:interleaved:2,2:8:3:5:interleaved:4,4:8:1:3:zbv:2,8:8:2:4:zbv:2,"
    "2:4:6:8:dualpipev:2,4:8:6:8:dualpipev:2,8:8:7:9:dualpipev:2"
)
"""Cut into all of T5's units."""


@pytest.mark.parametrize(
    ("cases", "families"),
    some(
        [
            *((cases, (family,)) for cases in (SEVERAL, SPLIT) for family in FAMILIES),
            (MORE_OF_SEVERAL, ()),
            (MORE_SPLIT, ()),
            (DEEP, ("T5",)),
        ],
        # The others in double precision, below.
        lambda case: case[0] in (SEVERAL, SPLIT) and case[1] == ("T5",),
    ),
)
def test_several_stages_and_split_backward_compute_what_one_device_computes(
    cases: str, families: tuple[str, ...]
) -> None:
    lines = swept(*families, "--cases", cases, "--steps", "2")
    assert lines
    for line in lines:
        assert "failed" not in line, line
        assert max(line[kind] for kind in ("loss", "gradient", "parameter")) <= TOLERANCE, line
    assert set().union(*(line["zero"] for line in lines)) - {0}


DOUBLED = "2:4:3:4:interleaved:2,2:4:3:4:zbv:2,4:2:4:5:zb-h1:1"


def test_in_double_precision_they_agree_to_eleven_digits() -> None:
    families = ("MLP float64", "GPT-2 float64")
    lines = swept(*families, "--cases", DOUBLED)
    assert len(lines) == 6
    for line in lines:
        assert "failed" not in line, line
        assert max(line[kind] for kind in ("loss", "gradient", "parameter")) <= 1e-11, line


def test_checkpoints_move_between_cuts_and_plans(tmp_path: Path) -> None:
    found = keeper().run(pipeline_checkpoints.moved, str(tmp_path))
    assert len(found["pairs"]) == 6
    for pair, of_ranks in found["pairs"].items():
        for losses in of_ranks:
            assert losses == pytest.approx(found["alone"], rel=1e-5), pair


@pytest.fixture(scope="module")
def random_pipelines() -> Pipelines:
    return pipelines()


def _errors(rank: int, pipeline: dict[str, Any]) -> dict[str, Any]:
    """Calls the module with the whole batch, then with a share, then without gradients."""
    module, batch = a_module(), a_batch()
    wanted = module(*batch)
    wanted.backward()
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in module.parameters()]))
    model = parallelize(module, batch, pipeline)
    off, worst = 0.0, 0.0
    for inputs in (batch, model.share(*batch)[0]):
        model.zero_grad()
        loss = model(*inputs)
        (loss * 3).backward()
        off = max(off, abs(float(loss.detach() - wanted.detach())))
        for name, parameter in model.named_parameters():
            whole = model.store.whole(name, parameter.grad) / 3
            right = module.get_parameter(name).grad
            worst = max(worst, float((whole - right).abs().max() / right.abs().max()))
        off = max(off, abs(float(clip_grad_norm_(model.store, 1e9)) / 3 - norm))
    with torch.no_grad():
        off = max(off, abs(float(model(*batch) - wanted.detach())))
    return {"off": off, "worst": worst, "names": sorted(n for n, _ in model.named_parameters())}


@pytest.mark.parametrize("seed", range(5))
def test_a_users_module_as_a_pipeline(
    four: SharedRanks, random_pipelines: Pipelines, seed: int
) -> None:
    stages = (2, 4)[seed % 2]
    pipeline = random_pipelines.pipeline(4, stages, seed)
    of_ranks = four(_errors, pipeline)
    for of_rank in of_ranks:
        assert of_rank["off"] < 1e-6
        assert of_rank["worst"] < TOLERANCE
    of_first, of_last = of_ranks[0]["names"], of_ranks[-1]["names"]
    assert "first.weight" in of_first and "last.weight" in of_last
    assert "last.weight" not in of_first and "first.bias" not in of_last


@pytest.mark.parametrize("gpus", ["v100=2,p100=2", "1080ti=2,v100=1,p100=1"])
def test_a_searched_pipeline_on_several_kinds_computes_what_one_device_computes(
    four: SharedRanks, gpus: str
) -> None:
    """Ranks differ in nothing but what the search thinks of them."""
    hardware = load_hardware("heterog-8")
    options = Options(micro_batches=(4,), zero=(0, 1, 2, 3))
    counts = [2] if gpus.startswith("v100") else [4]
    found = pipeline_or_plan(a_graph(), hardware, gpus, stages=counts, options=options)
    assert isinstance(found, Pipeline) and len({stage.group for stage in found.stages}) > 1
    for of_rank in four(_errors, document(found)):
        assert of_rank["off"] < 1e-6
        assert of_rank["worst"] < TOLERANCE


# The last two have the stages with the tied weight on one rank.
@pytest.mark.parametrize(
    ("schedule", "stages", "each"),
    [
        ("interleaved", 4, 2),
        ("zb-h1", 4, 1),
        ("dualpipev", 4, 2),
        ("zbv", 4, 2),
        ("interleaved", 3, 3),
    ],
)
def test_a_users_module_under_other_schedules(
    four: SharedRanks, random_pipelines: Pipelines, schedule: str, stages: int, each: int
) -> None:
    pipeline = random_pipelines.pipeline(4, stages, 3, schedule=schedule, stages_per_rank=each)
    for of_rank in four(_errors, pipeline):
        assert of_rank["off"] < 1e-6
        assert of_rank["worst"] < TOLERANCE


def _with_dropout(rank: int, pipelines: list[dict[str, Any]]) -> list[list[float]]:
    """Returns the losses of two steps under each pipeline, and their gradients' norms."""
    of_each = []
    for pipeline in pipelines:
        torch.manual_seed(0)
        model = parallelize(a_module(dropout=0.5), a_batch(), pipeline)
        figures = []
        for _ in range(2):
            model.zero_grad()
            loss = model(*a_batch())
            loss.backward()
            figures += [float(loss.detach()), float(clip_grad_norm_(model.store, 1e9))]
        of_each.append(figures)
    return of_each


def test_dropout_is_that_of_the_operator_and_the_micro_batch(four: SharedRanks) -> None:
    drawn = pipelines(dropout=0.5)
    documents = [
        drawn.pipeline(4, 4, 0, schedule=schedule, stages_per_rank=2, recompute="always")
        for schedule in ("interleaved", "zbv", "zb-h1")
    ]
    for of_rank in four(_with_dropout, documents):
        first, *others = of_rank
        assert first[0] != pytest.approx(first[2], rel=1e-4)
        for other in others:
            assert other == pytest.approx(first, rel=1e-5)


def _without(rank: int, pipeline: dict[str, Any], what: str) -> dict[str, Any]:
    """As `_errors`, with one thing that a pipeline does left out."""
    kept_sum, kept_gradients = runner._sum, pipeline_module.sum_gradients
    kept_weights = pipeline_module.run_waiting
    if what == "passed gradients":
        runner._sum = lambda own, passed, like: torch.zeros_like(like) if own is None else own
    elif what == "gradients of weights":
        calls = count()
        pipeline_module.run_waiting = lambda waiting: next(calls) % 2 or kept_weights(waiting)
    else:
        pipeline_module.sum_gradients = lambda shared, store: None
    try:
        return _errors(rank, pipeline)
    finally:
        runner._sum, pipeline_module.sum_gradients = kept_sum, kept_gradients
        pipeline_module.run_waiting = kept_weights


@pytest.mark.parametrize(
    ("what", "schedule"),
    [
        ("passed gradients", "1f1b-eager"),
        ("sums of tied gradients", "1f1b-eager"),
        ("gradients of weights", "zb-h1"),
    ],
)
def test_what_is_left_out_is_seen(
    four: SharedRanks, random_pipelines: Pipelines, what: str, schedule: str
) -> None:
    pipeline = random_pipelines.pipeline(4, 4, 1, schedule=schedule)
    of_ranks = four(_without, pipeline, what)
    assert max(of_rank["worst"] for of_rank in of_ranks) > 1e-3


def _keeps_the_module(rank: int, pipeline: dict[str, Any]) -> tuple[bool, list[str]]:
    module = a_module()
    weights = {name: weakref.ref(p) for name, p in module.named_parameters()}
    model = shardwise.parallelize(module, a_batch(), pipeline)
    del module
    gc.collect()
    model(*a_batch()).backward()
    return any(ref() is not None for ref in weights.values()), list(model.store.names)


def test_a_rank_keeps_its_own_stage_only(four: SharedRanks, random_pipelines: Pipelines) -> None:
    pipeline = random_pipelines.pipeline(4, 4, 0)
    of_ranks = four(_keeps_the_module, pipeline)
    assert not any(kept for kept, _ in of_ranks)
    names = [name for _, of_rank in of_ranks for name in of_rank]
    # The tied weight is in two stages, everything else in one.
    assert sorted(names) == sorted([*(n for n, _ in a_module().named_parameters()), "first.weight"])


def _as_ever(rank: int, pipeline: dict[str, Any], path: str) -> dict[str, Any]:
    """Trains as a script for one device does: a scaler, an optimizer of all parameters, clipping,
    a checkpoint in between; beside one device."""
    module, batch = a_module(), a_batch()
    model = parallelize(module, batch, pipeline)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    alone = torch.optim.Adam(module.parameters(), lr=1e-2)
    off = 0.0
    for step in range(4):
        optimizer.zero_grad()
        alone.zero_grad()
        loss, wanted = model(*batch), module(*batch)
        scaler.scale(loss).backward()
        wanted.backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        clip_grad_norm_(model.store, 0.1)
        scaler.step(optimizer)
        scaler.update()
        alone.step()
        off = max(off, abs(float(loss.detach() / wanted.detach()) - 1))
        if step == 1:
            save(model, optimizer, path)
            optimizer = torch.optim.Adam(model.parameters(), lr=9.0)
            load(model, optimizer, path)
    lr = optimizer.param_groups[0]["lr"]
    return {"off": off, "names": list(model.store.names), "lr": lr}


def test_a_stage_without_parameters_trains_as_ever(
    four: SharedRanks, random_pipelines: Pipelines, tmp_path: Path
) -> None:
    pipeline = copy.deepcopy(random_pipelines.pipeline(4, 2, 1))
    first, last = pipeline["stages"]
    # The last group is the loss.
    first["groups"] += last["groups"][:-1]
    last["groups"] = last["groups"][-1:]
    of_ranks = four(_as_ever, pipeline, str(tmp_path / "checkpoint"))
    assert of_ranks[0]["names"] and not of_ranks[-1]["names"]
    for of_rank in of_ranks:
        assert of_rank["off"] < 1e-5
        assert of_rank["lr"] == 1e-2


def _said(rank: int, pipeline: dict[str, Any], on_rank: int | None = None) -> tuple[str, str]:
    """Returns what `parallelize` raises on this rank; `on_rank` alone has the document."""
    if on_rank is not None and rank != on_rank:
        pipeline = {**pipeline, "id": "another"}
    try:
        parallelize(a_module(), a_batch(), pipeline)
    except shardwise.ShardwiseError as error:
        return type(error).__name__, str(error)
    return "", ""


def crossing_edge(pipeline: dict[str, Any]) -> dict[str, Any]:
    """Returns an edge from one stage to another."""
    names = [group["name"] for group in pipeline["groups"]]
    of = {names[g]: n for n, stage in enumerate(pipeline["stages"]) for g in stage["groups"]}
    return next(e for e in pipeline["edges"] if of[e["source"]] != of[e["target"]])


def swapped_at_source(pipeline: dict[str, Any]) -> None:
    edge = crossing_edge(pipeline)
    edge["layout_at_source"] = ["shard(1)" if w != "shard(1)" else "shard(0)"
                                for w in edge["layout_at_source"]]  # fmt: skip


def swapped_at_target(pipeline: dict[str, Any]) -> None:
    edge = crossing_edge(pipeline)
    edge["layout_at_target"] = ["shard(1)" if w != "shard(1)" else "shard(0)"
                                for w in edge["layout_at_target"]]  # fmt: skip


def swapped_in_operator(pipeline: dict[str, Any]) -> None:
    edge = crossing_edge(pipeline)
    group = next(g for g in pipeline["groups"] if g["name"] == edge["source"])
    for op in group["operators"]:
        for name, layout in op["outputs"].items():
            if name in edge["tensors"]:
                op["outputs"][name] = ["shard(1)" if w != "shard(1)" else "shard(0)"
                                       for w in layout]  # fmt: skip


def stages_swapped(pipeline: dict[str, Any]) -> None:
    one, other = pipeline["stages"]
    one["groups"], other["groups"] = other["groups"], one["groups"]


def one_stage_on_each(pipeline: dict[str, Any]) -> None:
    pipeline["schedule"], pipeline["stages_per_rank"] = "1f1b", 2


def stages_not_shared_evenly(pipeline: dict[str, Any]) -> None:
    pipeline["schedule"], pipeline["stages_per_rank"] = "interleaved", 4


def on_other_devices(pipeline: dict[str, Any]) -> None:
    pipeline["schedule"], pipeline["stages_per_rank"] = "interleaved", 2


def a_group_missing(pipeline: dict[str, Any]) -> None:
    pipeline["stages"][0]["groups"].pop()


def another_schedule(pipeline: dict[str, Any]) -> None:
    pipeline["schedule"] = "looped"


def a_v_of_one_stage_each(pipeline: dict[str, Any]) -> None:
    pipeline["schedule"] = "zbv"


def rounds_not_even(pipeline: dict[str, Any]) -> None:
    pipeline["schedule"], pipeline["micro_batches"] = "zb-h1", 5


def fewer_devices(pipeline: dict[str, Any]) -> None:
    pipeline["stages"].pop()


def batch_not_divided(pipeline: dict[str, Any]) -> None:
    pipeline["micro_batches"] = 3


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (swapped_at_source, "edges.layout_at_source"),
        (swapped_at_target, "edges"),
        (swapped_in_operator, "groups.operators.outputs"),
        (stages_swapped, "stages.groups"),
        (a_group_missing, "stages.groups"),
        (another_schedule, "schedule"),
        (a_v_of_one_stage_each, "stages_per_rank"),
        (rounds_not_even, "micro_batches"),
        (one_stage_on_each, "stages_per_rank"),
        (stages_not_shared_evenly, "stages_per_rank"),
        (on_other_devices, "stages[1]"),
        (fewer_devices, "gpus"),
        (batch_not_divided, "micro-batches"),
    ],
)
def test_bad_documents_are_refused_on_all_ranks(
    four: SharedRanks,
    random_pipelines: Pipelines,
    spoil: Callable[[dict[str, Any]], None],
    field: str,
) -> None:
    pipeline = copy.deepcopy(random_pipelines.pipeline(4, 2, 3))
    spoil(pipeline)
    for kind, text in four(_said, pipeline):
        assert kind == "BadInput", text
        assert field in text


def test_ranks_with_different_documents_are_refused(
    four: SharedRanks, random_pipelines: Pipelines
) -> None:
    pipeline = random_pipelines.pipeline(4, 2, 0)
    for kind, text in four(_said, pipeline, 2):
        assert kind == "BadInput"
        assert "rank 2 has another document than rank 0" in text


def test_a_pipeline_is_not_compiled(random_pipelines: Pipelines, four: SharedRanks) -> None:
    pipeline = random_pipelines.pipeline(4, 2, 0)
    assert all("not compiled" in text for text in four(_compiled, pipeline))


def _compiled(rank: int, pipeline: dict[str, Any]) -> str:
    try:
        shardwise.parallelize(a_module(), a_batch(), pipeline, compile=True)
    except BadInput as error:
        return str(error)
    return ""


def _in_half(rank: int, pipeline: dict[str, Any]) -> tuple[float, set[str]]:
    module, batch = a_module(), a_batch()
    model = parallelize(module, batch, pipeline)
    optimizer = shardwise.MasterWeights(model.parameters(), torch.optim.Adam, lr=1e-2)
    alone = torch.optim.Adam(module.parameters(), lr=1e-2)
    off = 0.0
    for _ in range(4):
        optimizer.zero_grad()
        alone.zero_grad()
        loss, wanted = model(*batch), module(*batch)
        loss.backward()
        wanted.backward()
        optimizer.step()
        alone.step()
        off = max(off, abs(float(loss.detach() / wanted.detach()) - 1))
    return off, {str(p.dtype) for p in model.parameters()}


@pytest.mark.parametrize(("schedule", "stages", "each"), [("1f1b", 2, 1), ("zbv", 4, 2)])
def test_in_16_bits(four: SharedRanks, schedule: str, stages: int, each: int) -> None:
    drawn = pipelines("bf16")
    pipeline = drawn.pipeline(4, stages, 3, schedule=schedule, stages_per_rank=each)
    for off, dtypes in four(_in_half, pipeline):
        assert off < 0.02
        assert dtypes == {"torch.bfloat16"}


@pytest.mark.parametrize("lost", some([0, 3, 1], lambda rank: rank == 3))
@pytest.mark.parametrize("stages", [2, 4])
def test_a_lost_rank_ends_all_others_by_name(
    random_pipelines: Pipelines, tmp_path: Path, stages: int, lost: int
) -> None:
    pipeline = random_pipelines.pipeline(4, stages, 3)
    codes = keeper().run(trained_until_lost, pipeline, lost, str(tmp_path))
    assert codes[lost] == 9
    assert [rank for rank, code in enumerate(codes) if code is None] == []
    for rank in {0, 1, 2, 3} - {lost}:
        text = (tmp_path / str(rank)).read_text()
        # Rank 0 has the store here; where it has ended too, both are named.
        named = text.partition(" ended")[0]
        assert named.startswith("RankLost: rank "), text
        assert f"rank {lost} (stage {lost * stages // 4})" in named, text
        if lost == 3 and rank == 0:
            assert named == f"RankLost: rank 3 (stage {3 * stages // 4})", text


def test_stages_that_train_nothing_or_adapters_alone_compute_what_one_device_computes() -> None:
    """The first stage of half a frozen model has no backward."""
    families = ("GPT-2, half frozen", "Llama with adapters")
    lines = swept(*families, "--cases", "2:2:1:2,2:2:0:1:zb-h1:1", "--steps", "2")
    assert {line["family"] for line in lines} == set(families)
    for line in lines:
        assert "failed" not in line, line
        assert max(line[kind] for kind in ("loss", "gradient", "parameter")) <= TOLERANCE, line
