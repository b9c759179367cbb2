"""Quotes over several kinds: offers taken together, and the parts of one profile."""

from __future__ import annotations

import datetime

import pytest
from msgspec import UNSET

from harness.graph_builder import GraphBuilder, mlp
from shardwise import answers as advice
from shardwise.answers import Options
from shardwise.documents import Quote
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import (
    Blocks,
    Devices,
    JointLinks,
    Nodes,
    combined_profile,
    group_name,
    hardware_document,
    hardware_from_document,
    load_hardware,
    parse_offers,
)
from shardwise.hardware.combined import ASSUMPTION

QUICK = Options(micro_batches=(1,), time_limit_s=4.0)
TODAY = datetime.date(2026, 11, 1)
HEADER = (
    "Provider,InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Hardware,NetworkGbps\n"
)


def wide() -> Graph:
    """Returns a graph that computes far more than it communicates."""
    builder = GraphBuilder("wide")
    data = builder.input("x", 65536, 1024)
    for i in range(4):
        weight = builder.parameter(f"w{i}", 1024, 1024)
        data = builder.linear(f"fc{i}", data, weight, f"h{i}")
    return builder.graph()


GRAPH = wide()


def offers(cheap: float, dear: float, region: str = "here") -> str:
    return (
        f"{HEADER}cloud,slow,P100,1,{cheap},{region},slow.json,100\n"
        f"cloud,fast,V100,1,{dear},here,fast.json,100\n"
    )


@pytest.fixture(scope="module", autouse=True)
def profiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two kinds of nodes with one device each: a P100 and a V100, by their data sheets."""
    import msgspec

    folder = tmp_path_factory.mktemp("profiles")
    whole, paths = load_hardware("heterog-8"), {}
    for name, group in (("slow", "p100"), ("fast", "v100")):
        alone = whole.of_group(group).with_devices_per_node(1)
        document = {**hardware_document(alone), "name": name}
        document["levels"][1]["size"] = 16
        paths[name] = str(folder / f"{name}.json")
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(document))
    return paths


def quoted(text: str, profiles: dict[str, str], **more: object) -> Quote:
    for name, path in profiles.items():
        text = text.replace(f"{name}.json", path)
    return advice.quote(
        GRAPH, parse_offers(text, "offers.csv"), options=QUICK, max_instances=2, today=TODAY, **more
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def steps_s(profiles: dict[str, str]) -> dict[tuple[str, int], float]:
    """Seconds of a step by instance and number, of one kind each."""
    answer = quoted(offers(1.0, 1.0), profiles)
    return {(row.instance_type, row.instances): row.replayed_time_s for row in answer.offers}


def test_a_combination_wins_where_it_is_cheaper_than_one_kind_in_time(
    profiles: dict[str, str], steps_s: dict[tuple[str, int], float]
) -> None:
    """Two slow ones are too slow, two fast ones dearer than one of each."""
    within = (steps_s["slow", 2] + steps_s["fast", 2]) / 2
    answer = quoted(offers(2.9, 5.5), profiles, combine=2, steps=1000, deadline_s=within * 1000)
    best, second = answer.offers[:2]
    assert best.parts is not UNSET
    assert [(part.instance_type, part.instances) for part in best.parts] == [
        ("slow", 1), ("fast", 1),
    ]  # fmt: skip
    assert best.bundle == "p100=1,v100=1"
    assert best.usd_per_hour == pytest.approx(8.4)
    assert best.usd_per_hour == sum(part.usd_per_hour for part in best.parts)
    assert best.meets_deadline and second.meets_deadline
    assert second.instance_type == "fast" and second.usd_per_hour == 11.0
    assert best.combined == ASSUMPTION
    assert best.replayed_time_s < within
    assert best.usd_total < second.usd_total
    assert answer.combinations is not UNSET
    assert [one.bundle for one in answer.combinations.tried] == ["p100=1,v100=1"]


def test_it_is_not_tried_where_one_kind_is_cheaper(
    profiles: dict[str, str], steps_s: dict[tuple[str, int], float]
) -> None:
    within = (steps_s["slow", 2] + steps_s["fast", 2]) / 2
    answer = quoted(offers(3.1, 3.0), profiles, combine=2, steps=1000, deadline_s=within * 1000)
    assert answer.combinations is not UNSET
    assert answer.combinations.tried == []
    assert all(row.parts is UNSET for row in answer.offers)


def test_instances_of_two_regions_are_not_one_cluster(
    profiles: dict[str, str], steps_s: dict[tuple[str, int], float]
) -> None:
    within = (steps_s["slow", 2] + steps_s["fast", 2]) / 2
    text = offers(2.9, 5.5, region="elsewhere")
    answer = quoted(text, profiles, combine=2, steps=1000, deadline_s=within * 1000)
    assert answer.combinations is not UNSET
    assert answer.combinations.considered == 0


def test_a_quote_of_one_kind_says_nothing_of_combinations(profiles: dict[str, str]) -> None:
    answer = quoted(offers(1.0, 1.0), profiles)
    assert answer.combinations is UNSET and answer.hardware is UNSET
    assert all(row.bundle is UNSET and row.parts is UNSET for row in answer.offers)


def test_a_combined_profile_has_its_parts_as_they_were() -> None:
    one, other = load_hardware("dgx-h100"), load_hardware("dgx-a100-80gb")
    whole = combined_profile([Nodes("h100", one, 1), Nodes("a100", other, 2)])
    assert hardware_from_document(hardware_document(whole)).id == whole.id
    assert ASSUMPTION in whole.provenance
    for name, part in (("h100", one), ("a100", other)):
        alone = whole.of_group(name)
        assert alone.devices == part.devices
        assert [(x.bandwidth_bytes_per_s, x.latency_s, x.efficiency) for x in alone.levels] == [
            (x.bandwidth_bytes_per_s, x.latency_s, x.efficiency) for x in part.levels
        ]
        assert len(alone.collectives) == len(part.collectives)
        assert alone.sources["levels.inside"] == part.sources["levels.inside"]


def test_between_its_parts_is_the_slower_network() -> None:
    one, other = load_hardware("dgx-h100"), load_hardware("dgx-a100-80gb")
    whole = combined_profile([Nodes("h100", one, 1), Nodes("a100", other, 1)])
    links = JointLinks(Blocks.of(whole, Devices.parse("h100=8,a100=8", whole)))
    slow = min(hardware.levels[1].bandwidth_bytes_per_s * hardware.levels[1].efficiency
               for hardware in (one, other))  # fmt: skip
    assert links.bandwidth(0, 1) == links.bandwidth(1, 0) == slow


@pytest.mark.parametrize(
    ("names", "nodes", "field"),
    [
        (["h100"], [1], "parts"),
        (["h100", "h100"], [1, 1], "parts[1].name"),
        (["h100", "A 100"], [1, 1], "parts[1].name"),
        (["h100", "a100"], [1, 0], "parts[1].nodes"),
    ],
)
def test_a_refused_combination_names_the_part(
    names: list[str], nodes: list[int], field: str
) -> None:
    profiles = [load_hardware("dgx-h100"), load_hardware("dgx-a100-80gb")]
    parts = [Nodes(n, h, c) for n, h, c in zip(names, profiles, nodes, strict=False)]
    with pytest.raises(BadInput) as caught:
        combined_profile(parts)
    assert caught.value.field == field


def test_two_profiles_of_one_kind_are_not_combined() -> None:
    one = load_hardware("dgx-h100")
    with pytest.raises(BadInput, match="different kinds"):
        combined_profile([Nodes("a", one, 1), Nodes("b", one, 1)])
    assert group_name("A100-80GB") == "a100-80gb"


def test_parts_of_a_profile_are_quoted_at_prices_by_group() -> None:
    whole = load_hardware("l40s-4+a100-4")
    answer = advice.quote(
        mlp(64, 256, 256),
        [],
        hardware=whole,
        prices={"l40s": 1.0, "a100": 2.0},
        options=Options(micro_batches=(1,), time_limit_s=0.5),
        today=TODAY,
        steps=1000,
    )
    assert answer.hardware == whole.name
    rows = {row.bundle: row for row in answer.offers}
    assert rows["l40s=4,a100=4"].usd_per_hour == 12.0
    assert rows["l40s=2"].usd_per_hour == 2.0
    assert answer.minimum_gpus == 2
    totals = [row.usd_total for row in answer.offers]
    assert totals == sorted(totals)
    assert not answer.stale


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"combine": 4}, "combine"),
        ({"prices": {"v100": 1.0}}, "prices"),
        ({"hardware": load_hardware("dgx-h100")}, "hardware"),
        ({"hardware": load_hardware("heterog-8"), "combine": 2}, "combine"),
        ({"hardware": load_hardware("heterog-8")}, "prices.v100"),
        ({"hardware": load_hardware("heterog-8"), "prices": {"k80": 1.0}}, "prices.k80"),
        ({"hardware": load_hardware("heterog-8"), "prices": {"v100": -1.0}}, "prices.v100"),
    ],
)
def test_a_refused_quote_names_the_field(more: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        advice.quote(GRAPH, [], **more)  # type: ignore[arg-type]
    assert caught.value.field == field
