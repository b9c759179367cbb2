"""Curves over bundles of several kinds, and the lists of bundles that they take."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET

from harness.commands import shardwise
from harness.graph_builder import mlp
from shardwise import answers as advice
from shardwise.answers import Options
from shardwise.documents import Curve
from shardwise.errors import BadInput
from shardwise.graph import write_graph
from shardwise.hardware import (
    Devices,
    bundle_usd_per_hour,
    group_prices,
    load_hardware,
    parse_bundles,
    parts_of,
    read_offers,
    usual_bundles,
)
from shardwise.pictures.plots import curve_picture

EIGHT, CLOUD = load_hardware("heterog-8"), load_hardware("h100-8+a100-8")
QUICK = Options(micro_batches=(1,), time_limit_s=2.0)
GRAPH = mlp(64, 512, 512)


@pytest.fixture(scope="module")
def answer() -> Curve:
    return advice.curve(GRAPH, EIGHT, None, QUICK, bundles=["p100=1, v100=2", "v100=2", "v100=2"])


def test_usual_bundles_are_groups_alone_then_the_fastest_together() -> None:
    assert [str(bundle) for bundle in usual_bundles(EIGHT)] == [
        "v100=2", "1080ti=4", "p100=2", "v100=2,1080ti=4", "v100=2,1080ti=4,p100=2",
    ]  # fmt: skip


def test_a_list_of_bundles_is_the_same_however_it_is_written() -> None:
    one = parse_bundles(["p100=1,v100=1", "usual", "1080ti=2"], EIGHT)
    other = parse_bundles(["1080ti=2", "v100=1, p100=1", "1080ti=2", "usual"], EIGHT)
    assert one == other
    assert [bundle.gpus for bundle in one] == sorted(bundle.gpus for bundle in one)
    assert len(set(one)) == len(one) == 7


@pytest.mark.parametrize(
    ("texts", "field", "said"),
    [
        ([], "bundles", "no bundles"),
        (["v100=1", "k80=1"], "bundles[1]", "unknown group 'k80'"),
        (["v100=9"], "bundles[0]", "1 to 2 of v100"),
        (["4"], "bundles[0]", "of an unspecified group"),
        (["v" * 1001], "bundles[0]", "a text of 1001 characters"),
    ],
)
def test_a_refused_list_names_the_place(texts: list[str], field: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_bundles(texts, EIGHT)
    assert caught.value.field == field
    assert said in str(caught.value)


def test_no_more_bundles_than_the_limit() -> None:
    texts = [f"h100={h},a100={a}" for h in range(1, 9) for a in range(1, 9)]
    assert len(parse_bundles(texts, CLOUD)) == 64
    with pytest.raises(BadInput, match="65 bundles"):
        parse_bundles([*texts, "h100=1"], CLOUD)


def test_a_curve_has_a_point_for_each_bundle(answer: Curve) -> None:
    assert answer.bundles == ["v100=2", "v100=2,p100=1"]
    assert [point.bundle for point in answer.points] == answer.bundles
    assert [(point.gpus, point.nodes) for point in answer.points] == [(2, 1), (3, 2)]
    assert answer.max_gpus == 3
    assert answer.hardware == "heterog-8"
    assert all(point.feasible and point.usd_per_hour is UNSET for point in answer.points)


def test_a_point_is_the_plan_of_its_bundle(answer: Curve) -> None:
    for point in answer.points:
        planned = advice.plan(GRAPH, EIGHT, str(point.bundle), options=QUICK)
        assert point.plan_id == planned.id
        assert point.replayed_time_s == planned.predicted.replayed_time_s
        # What is proven within the time differs from run to run.
        assert point.gap == pytest.approx(planned.predicted.gap, abs=0.3)
        assert point.alone is (UNSET if planned.cluster is not UNSET else point.alone)


def test_a_bundle_that_does_not_fit_says_what_it_needs() -> None:
    tight = Options(micro_batches=(1,), time_limit_s=2.0, memory_limit_bytes=1e5)
    curve = advice.curve(GRAPH, EIGHT, None, tight, bundles=["v100=1,p100=1"])
    (point,) = curve.points
    assert not point.feasible
    (run,) = curve.does_not_fit
    assert run.bundle == "v100=1,p100=1"
    assert run.limit_bytes == 100_000
    assert run.least_bytes == point.least_bytes
    assert run.least_bytes is not None and run.least_bytes > 100_000


def test_counts_and_bundles_are_each_for_their_hardware() -> None:
    with pytest.raises(BadInput) as caught:
        advice.curve(GRAPH, EIGHT, 8)
    assert caught.value.field == "max_gpus"
    assert "v100 (2 V100-PCIe-16GB)" in str(caught.value)
    with pytest.raises(BadInput) as caught:
        advice.curve(GRAPH, load_hardware("dgx-h100"), bundles=["h100=2"])
    assert caught.value.field == "bundles"
    with pytest.raises(BadInput, match="max_gpus: missing"):
        advice.curve(GRAPH, load_hardware("dgx-h100"))


def test_prices_are_of_whole_instances_unless_they_are_given() -> None:
    offered = group_prices(CLOUD, read_offers())
    assert offered["h100"].offer is not None
    both = Devices.parse("h100=3,a100=8", CLOUD)
    dearest = offered["h100"].usd_per_hour + offered["a100"].usd_per_hour
    assert bundle_usd_per_hour(both, offered) == dearest
    given = group_prices(CLOUD, [], {"h100": 2.0})
    assert bundle_usd_per_hour(Devices.parse("h100=3", CLOUD), given) == 6.0
    assert bundle_usd_per_hour(both, given) is None
    with pytest.raises(BadInput) as caught:
        group_prices(CLOUD, [], {"v100": 2.0})
    assert caught.value.field == "prices.v100"


def test_parts_of_a_profile_are_few_and_have_the_usual_ones() -> None:
    parts = parts_of(EIGHT)
    assert len(parts) <= 24
    assert set(usual_bundles(EIGHT)) <= set(parts)
    assert str(parts[-1]) == "v100=2,1080ti=4,p100=2"


def test_the_picture_names_bundles_on_its_axis(answer: Curve) -> None:
    picture = curve_picture(answer).svg(selectable=True)
    assert "2 v100 + 1 p100" in picture


def test_the_command_prints_a_row_for_each_bundle(tmp_path: Path) -> None:
    write_graph(GRAPH, tmp_path / "g.json")
    done = shardwise(
        "curve", "g.json", "--hardware", "heterog-8", "--bundle", "v100=2", "--bundle",
        "v100=2,p100=1", "--micro-batches", "1", "--time-limit", "2", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "v100=2,p100=1" in done.stdout
    assert "USD/h" in done.stdout


def test_the_command_refuses_a_count_with_the_list(tmp_path: Path) -> None:
    write_graph(GRAPH, tmp_path / "g.json")
    refused = shardwise(
        "curve", "g.json", "--hardware", "heterog-8", "--max-gpus", "8", cwd=tmp_path
    )
    assert refused.returncode == 2
    assert "usual for each group alone" in refused.stderr
