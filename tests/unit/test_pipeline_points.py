"""Pipelines in frontiers, curves and quotes: laws, tables, exports, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result
from msgspec import UNSET

from harness.graph_builder import layers
from harness.tiers import WHOLE
from shardwise import answers as advice
from shardwise import documents
from shardwise.answers import Infeasible, Options, job_from_curve
from shardwise.cli.advice import curve as curve_command
from shardwise.cli.advice import frontier as frontier_command
from shardwise.cli.advice import quote as quote_command
from shardwise.cost.options import quiet
from shardwise.cost.pins import parse_pin
from shardwise.documents import json_schema
from shardwise.documents.curve import fastest_s, fits
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware, Offer, load_hardware
from shardwise.pictures.plots import GIB, curve_picture, frontier_picture
from shardwise.schedulers.counts import Counts
from shardwise.search.pipelines.search import PipelineSearch

L4 = load_hardware("l4")
TWO_NODES = load_hardware("l4*2")
OPTIONS = Options(micro_batches=(8,))
CHAIN, LONGER = layers(10, 64, 2048), layers(20, 64, 2048)
REPLICATED = Options(
    micro_batches=(8,),
    zero=(0,),
    memory_limit_bytes=0.25 * GIB,
    pins=(parse_pin("inside!=out"), parse_pin("inside!=in")),
)
"""Weights are on every device of a stage: the chain fits as a pipeline only."""
ROOMY = replace(REPLICATED, memory_limit_bytes=GIB)
"""It fits without a pipeline too, and takes longer then."""


@pytest.fixture(scope="module")
def frontier() -> documents.Frontier:
    return advice.frontier(LONGER, L4, 4, ROOMY, stages=[2, 4])


@pytest.fixture(scope="module")
def curve() -> documents.Curve:
    return advice.curve(CHAIN, L4, 5, REPLICATED, stages=None)


# The search


@pytest.mark.parametrize(("hardware", "gpus", "stages"), [(TWO_NODES, 16, [2, 4]), (L4, 4, [2, 4])])
def test_the_fastest_of_a_frontier_is_as_fast_as_the_fastest(
    gpt2: Graph, hardware: Hardware, gpus: int, stages: list[int]
) -> None:
    points = PipelineSearch(gpt2, hardware, Devices.alike(gpus), OPTIONS, quiet).frontier(stages)
    best = (
        PipelineSearch(gpt2, hardware, Devices.alike(gpus), OPTIONS, quiet).fastest(stages).pipeline
    )
    assert best is not None and points[-1].step_s <= 1.01 * best.step_s
    assert all(point.fits for point in points)
    for less, more in pairwise(points):
        assert less.peak_bytes.max() < more.peak_bytes.max() and less.step_s > more.step_s


def test_a_point_is_found_again_within_its_memory() -> None:
    points = PipelineSearch(CHAIN, L4, Devices.alike(4), OPTIONS, quiet).frontier([2, 4])
    assert len(points) > 1
    # Both ends and one between are enough for `make test`: each takes two searches.
    for n in range(len(points)) if WHOLE else {0, len(points) // 2, len(points) - 1}:
        point = points[n]
        limit = float(point.peak_bytes.max())
        search = PipelineSearch(
            CHAIN, L4, Devices.alike(4), replace(OPTIONS, memory_limit_bytes=limit), quiet
        )
        again, fastest = search.frontier([2, 4]), search.fastest([2, 4]).pipeline
        assert all(other.peak_bytes.max() <= limit for other in again)
        assert again[-1].step_s <= 1.01 * point.step_s
        assert fastest is not None and fastest.fits and fastest.step_s <= 1.05 * point.step_s


def test_less_memory_never_makes_a_frontier_faster() -> None:
    steps = []
    for share in (1.0, 0.5, 0.25, 0.1):
        options = replace(OPTIONS, memory_limit_bytes=share * GIB)
        points = PipelineSearch(CHAIN, L4, Devices.alike(4), options, quiet).frontier([2, 4])
        steps.append(points[-1].step_s if points else float("inf"))
    assert all(more <= 1.01 * less for more, less in pairwise(steps))


def test_a_cutoff_leaves_out_what_is_no_faster() -> None:
    search = PipelineSearch(CHAIN, L4, Devices.alike(4), OPTIONS, quiet)
    best = search.fastest([2, 4]).pipeline
    assert best is not None
    assert search.fastest([2, 4], best.step_s).pipeline is None
    again = search.fastest([2, 4], 1.2 * best.step_s).pipeline
    assert again is not None and again.step_s == best.step_s


# Frontiers


def test_pipelines_are_below_the_frontier_without(frontier: documents.Frontier) -> None:
    assert frontier.pipelines
    ordered = [(p.peak_bytes, p.step_s) for p in frontier.pipelines]
    assert ordered == sorted(ordered) and [s for _, s in ordered] == sorted(
        (s for _, s in ordered), reverse=True
    )
    assert len(ordered) > 1 and frontier.points
    for peak, step in ordered:
        assert peak <= frontier.memory_limit_bytes
        within = [p.replayed_time_s for p in frontier.points if p.replayed_peak_bytes <= peak]
        assert step < min(within, default=float("inf"))


def test_points_are_those_without_stages() -> None:
    asked = advice.frontier(CHAIN, L4, 4, OPTIONS, stages=[2, 4])
    alone = advice.frontier(CHAIN, L4, 4, OPTIONS, stages=[1])
    assert alone.pipelines is UNSET and asked.pipelines is not UNSET
    assert [p.plan_id for p in asked.points] == [p.plan_id for p in alone.points]
    assert (asked.turning_point, asked.certificate) == (alone.turning_point, alone.certificate)


def test_a_pipeline_that_a_point_beats_is_left_out() -> None:
    """With samples to split, data parallel training of few weights is faster than any pipeline."""
    wide = layers(4, 65536, 1024)
    points = PipelineSearch(wide, L4, Devices.alike(2), OPTIONS, quiet).frontier([2])
    asked = advice.frontier(wide, L4, 2, OPTIONS, stages=[2])
    assert points and asked.pipelines == []


def test_a_point_is_the_pipeline_of_a_plan(frontier: documents.Frontier) -> None:
    assert frontier.pipelines
    planned = advice.pipeline_or_plan(LONGER, L4, 4, stages=[2, 4], options=ROOMY)
    assert isinstance(planned, documents.Pipeline)
    (same,) = (p for p in frontier.pipelines if p.id == planned.id)
    assert same.step_s == planned.predicted.step_s
    assert same.peak_bytes == planned.predicted.peak_bytes
    assert same.first_units == [stage.first_unit for stage in planned.stages]
    assert same.labels == [stage.label for stage in planned.stages]


def test_the_picture_has_pipelines(frontier: documents.Frontier) -> None:
    assert frontier.pipelines
    (axes,) = frontier_picture(frontier).figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    shown = [[p.peak_bytes / GIB, p.step_s] for p in frontier.pipelines]
    assert lines["pipelines"].get_xydata().tolist() == shown


# Curves


def test_a_count_on_which_only_a_pipeline_fits_is_a_count(curve: documents.Curve) -> None:
    last = curve.points[-1]
    assert (last.gpus, last.feasible, fits(last)) == (5, False, True)
    assert last.pipeline is not UNSET and last.pipeline.peak_bytes <= 0.25 * GIB
    assert last.best_time_s is not None and last.best_time_s <= last.pipeline.step_s
    assert all(not run.first <= 5 <= run.last for run in curve.does_not_fit)
    assert [point.gpus for point in curve.points if not fits(point)] == [
        gpus for run in curve.does_not_fit for gpus in range(run.first, run.last + 1)
    ]
    assert "no pipeline that was asked for fits either" in curve.does_not_fit[0].reason


def test_a_pipeline_of_a_point_is_faster_than_none(curve: documents.Curve) -> None:
    alone = advice.curve(CHAIN, L4, 5, REPLICATED)
    best = float("inf")
    for point, other in zip(curve.points, alone.points, strict=True):
        assert other.pipeline is UNSET
        assert (point.feasible, point.replayed_time_s) == (other.feasible, other.replayed_time_s)
        if point.pipeline is not UNSET and other.replayed_time_s is not None:
            assert point.pipeline.step_s < other.replayed_time_s
        if point.pipeline is not UNSET:
            assert point.gpus % point.pipeline.stages == 0
        best = min(best, fastest_s(point, overlap=True) or float("inf"))
        assert (point.best_time_s or float("inf")) == best


def test_schedulers_and_allocations_count_pipelines(curve: documents.Curve) -> None:
    wanted = {p.gpus: fastest_s(p, overlap=True) for p in curve.points if fits(p)}
    assert 5 in wanted
    assert {c.gpus: c.step_s for c in Counts.of(curve).counts} == wanted
    assert {p.gpus: p.time_s for p in job_from_curve(curve, "x").points} == wanted


@pytest.mark.parametrize(
    ("pipeline", "field"),
    [(7, r"points\[0\]\.pipeline"), ({"step_s": "fast"}, r"points\[0\]\.pipeline\.step_s")],
)
def test_a_malformed_pipeline_is_refused_by_field(pipeline: object, field: str) -> None:
    point = {"gpus": 1, "feasible": True, "time_s": 1.0, "pipeline": pipeline}
    with pytest.raises(BadInput, match=field):
        Counts.of({"schema": "shardwise.curve/1", "points": [point]})


def test_the_pictures_curve_is_that_of_the_fastest(curve: documents.Curve) -> None:
    lines = {line.get_label(): line for line in curve_picture(curve).figure.axes[0].lines}
    piped = [[p.gpus, p.pipeline.step_s] for p in curve.points if p.pipeline is not UNSET]
    assert lines["by a pipeline"].get_xydata().tolist() == piped
    assert lines["does not fit"].get_xdata().tolist() == [
        p.gpus for p in curve.points if not fits(p)
    ]


# Quotes


def offer(gpus: int) -> Offer:
    return Offer("cloud", f"l4-{gpus}", gpus, "L4", "", False, 1.0 * gpus, "2026-11-01", "x", "l4")


def test_offers_go_by_the_faster_of_both() -> None:
    asked = {"max_instances": 1, "options": REPLICATED}
    alone = advice.quote(CHAIN, [offer(5)], **asked)
    assert not alone.offers
    (row,) = advice.quote(CHAIN, [offer(5)], stages=[5], **asked).offers
    assert row.pipeline is not UNSET and row.pipeline.stages == 5
    assert (row.replayed_time_s, row.plan_id) == (row.pipeline.step_s, row.pipeline.id)
    assert row.usd_per_million_samples == pytest.approx(5.0 / 3600 * row.pipeline.step_s / 64 * 1e6)


# The command line


CHAIN_ARGUMENTS = (
    "--micro-batches", "8", "--zero", "0", "--memory", "256MiB", "--quiet",
    "--pin", "inside!=out", "--pin", "inside!=in",
)  # fmt: skip


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> str:
    from shardwise.graph import write_graph

    path = tmp_path_factory.mktemp("graph") / "chain.json"
    write_graph(CHAIN, path)
    return str(path)


def run(command: object, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), env={"COLUMNS": "140"})  # type: ignore[arg-type]


def test_a_frontier_prints_its_pipelines(chain: str, tmp_path: Path) -> None:
    where = (chain, "--hardware", "l4", "--gpus", "5", *CHAIN_ARGUMENTS)
    file = tmp_path / "frontier.json"
    printed = run(frontier_command, *where, "--stages", "5", "-o", str(file))
    assert printed.exit_code == 0, printed.output
    assert "pipelines that none of these beats" in printed.stdout
    document = json.loads(file.read_text())
    jsonschema.validate(document, json_schema("frontier"))
    assert document["pipelines"]
    without = json.loads(run(frontier_command, *where, "--json").stdout)
    assert "pipelines" not in without
    assert without["points"] == document["points"]


def test_a_curve_that_only_pipelines_make_says_nothing_of_other_computation(chain: str) -> None:
    where = (chain, "--hardware", "l4", "--max-gpus", "4", *CHAIN_ARGUMENTS)
    assert run(curve_command, *where).exit_code == 1
    printed = run(curve_command, *where, "--stages", "4")
    assert printed.exit_code == 0 and "4 stages" in printed.stdout
    assert "Compute times" not in printed.stdout


def test_a_curve_prints_and_exports_its_pipelines(chain: str, tmp_path: Path) -> None:
    where = (chain, "--hardware", "l4", "--max-gpus", "5", *CHAIN_ARGUMENTS, "--stages", "auto")
    file = tmp_path / "curve.json"
    printed = run(curve_command, *where, "-o", str(file))
    assert printed.exit_code == 0, printed.output
    assert "5 stages, 1f1b" in printed.stdout
    document = json.loads(file.read_text())
    jsonschema.validate(document, json_schema("curve"))
    rows = list(csv.DictReader(io.StringIO(run(curve_command, *where, "--format", "csv").stdout)))
    assert rows[-1]["pipeline_stages"] == "5" and rows[0]["pipeline_stages"] == ""
    assert float(rows[-1]["pipeline_step_s"]) == document["points"][-1]["pipeline"]["step_s"]


def test_a_quote_names_the_pipeline(chain: str, tmp_path: Path) -> None:
    table = tmp_path / "offers.csv"
    table.write_text(
        "Provider,InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Hardware\n"
        "cloud,five,L4,5,5.0,here,l4\n"
    )
    where = (chain, "--offers", str(table), "--max-instances", "1", *CHAIN_ARGUMENTS)
    file = tmp_path / "quote.json"
    printed = run(quote_command, *where, "--stages", "5", "-o", str(file))
    assert printed.exit_code == 0, printed.output
    assert "5 stages, 1f1b" in printed.stdout
    document = json.loads(file.read_text())
    jsonschema.validate(document, json_schema("quote"))
    assert run(quote_command, *where).exit_code == 1


FRONTIER = ("--hardware", "l4", "--gpus", "4")
CURVE = ("--hardware", "l4", "--max-gpus", "4")
KINDS = ("--hardware", "heterog-8")


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        (frontier_command, (*FRONTIER, "--stages", "two"), "'two' names no numbers of stages"),
        (frontier_command, (*FRONTIER, "--stages", "3"), "3 stages of 4 devices"),
        (frontier_command, (*FRONTIER, "--stages", "99"), "99 stages of"),
        (
            frontier_command,
            (*FRONTIER, "--stages", "2", "--schedules", "dualpipe"),
            "unknown schedule 'dualpipe'",
        ),
        (
            frontier_command,
            (*FRONTIER, "--stages", "2", "--objective", "sum"),
            "no answer for a pipeline by sums",
        ),
        (
            frontier_command,
            ("--hardware", "heterog-8", "--gpus", "v100=2,1080ti=4", "--stages", "2"),
            "2 stages of v100=2,1080ti=4",
        ),
        (curve_command, (*CURVE, "--stages", "8"), "8 stages of up to 4 devices"),
        (
            curve_command,
            (*KINDS, "--bundle", "usual", "--stages", "2", "--schedules", "interleaved:2"),
            "interleaved:2: no answer for split or interleaved schedules on devices of several",
        ),
        (
            curve_command,
            (*CURVE, "--stages", "2", "--objective", "sum"),
            "no answer for a pipeline by sums",
        ),
        (
            quote_command,
            (*KINDS, "--stages", "2", "--schedules", "zbv"),
            "zbv: no answer for split or interleaved schedules",
        ),
    ],
)
def test_what_is_refused(
    chain: str, command: object, arguments: tuple[str, ...], says: str
) -> None:
    result = run(command, chain, "--quiet", *arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, BadInput | Infeasible | SystemExit)
    assert says in f"{result.output} {result.exception}"
