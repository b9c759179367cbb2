"""Kinds of ranks: what labels say, how ranks make groups, what is measured over several."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from service.cluster.kinds import Host, hosts_of, slots_of_kind
from service.store.device_kinds import kinds_in
from shardwise.errors import BadInput
from shardwise.measure.kinds.layout import Placed, groups_of, joint_shapes
from shardwise.measure.labels import KIND_VARIABLE, SLOWED_VARIABLE, own_label, parse_kinds
from shardwise.measure.operators.clock import Clock
from shardwise.measure.rank import Rank
from shardwise.measure.slowed import Slowed
from shardwise.measure.world import World, find_world


def test_a_rank_finds_its_label() -> None:
    labels = [own_label(rank, 4, "fast=1,slow=3", "slow=2.5", {}) for rank in range(4)]
    assert [(label.kind, float(label.slowed.times)) for label in labels] == [
        ("fast", 1.0),
        *[("slow", 2.5)] * 3,
    ]
    own = own_label(0, 1, None, None, {KIND_VARIABLE: "slow", SLOWED_VARIABLE: "2"})
    assert (own.kind, own.slowed.times) == ("slow", 2)
    assert own_label(0, 1, environment={}).kind == ""
    assert parse_kinds("a b=2, c=1") == ["a b", "a b", "c"]


@pytest.mark.parametrize(
    ("kinds", "slowed", "environment", "field"),
    [
        ("fast", None, {}, "kinds"),
        ("fast=0", None, {}, "kinds"),
        ("fast=x", None, {}, "kinds"),
        ("=2", None, {}, "kinds"),
        ("fast=3", None, {}, "kinds"),
        ("fast=2", "slow=2", {}, "slowed"),
        ("fast=2", "fast=5", {}, "slowed"),
        ("fast=2", "fast=x", {}, "slowed"),
        (None, "fast=2", {}, "slowed"),
        (None, None, {SLOWED_VARIABLE: "2"}, KIND_VARIABLE),
        (None, None, {KIND_VARIABLE: "a=b"}, KIND_VARIABLE),
        (None, None, {KIND_VARIABLE: "a", SLOWED_VARIABLE: "nan"}, SLOWED_VARIABLE),
    ],
)
def test_labels_that_cannot_be(
    kinds: str | None, slowed: str | None, environment: dict[str, str], field: str
) -> None:
    with pytest.raises(BadInput) as caught:
        own_label(0, 2, kinds, slowed, environment)
    assert caught.value.field == field
    assert caught.value.expected


def test_nodes_of_one_kind_and_size_are_a_group() -> None:
    placed = [
        *[Placed("NVIDIA V100", 0)] * 4,
        *[Placed("P100", 4)] * 2,
        *[Placed("P100", 6)] * 2,
        *[Placed("P100", 8)] * 1,
    ]
    groups = groups_of(placed)
    assert [(g.name, g.kind, g.nodes) for g in groups] == [
        ("v100", "NVIDIA V100", ((0, 1, 2, 3),)),
        ("p100", "P100", ((4, 5), (6, 7))),
        ("p100.2", "P100", ((8,),)),
    ]
    # One host with two kinds has two nodes.
    shared = groups_of([Placed("a", 0), Placed("b", 0), Placed("a", 0)])
    assert [(g.name, g.nodes) for g in shared] == [("a", ((0, 2),)), ("b", ((1,),))]


def test_what_is_measured_over_several_groups() -> None:
    groups = groups_of([*[Placed("v", 0)] * 4, *[Placed("p", 4)] * 2, *[Placed("p", 6)] * 2])
    shapes = {(s.kinds, s.shape.ranks_per_node): s for s in joint_shapes(groups)}
    assert set(shapes) == {
        (("p", "v"), 1),
        (("p", "v"), 2),
        (("p", "p", "v"), 1),
        (("p", "p", "v"), 2),
    }
    pairs = ("p", "v"), 1
    assert shapes[pairs].groups == ((0, 4), (1, 5))
    assert shapes[pairs].per_node == 2 and not shapes[pairs].shape.consecutive
    whole = ("p", "p", "v"), 2
    assert shapes[whole].groups == ((0, 1, 4, 5, 6, 7),)
    assert shapes[whole].per_node == 1 and shapes[whole].shape.size == 6
    # Ranks 2 and 3 are in none of them: nodes have as many ranks as the smallest can give.
    assert all(2 not in ranks for shape in shapes.values() for ranks in shape.groups)


def test_nodes_with_unequal_ranks_are_a_world_of_several_kinds_only() -> None:
    uneven = {"RANK": "4", "WORLD_SIZE": "6", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert find_world(uneven, is_even=False) == World(4, 6, 0, 2, "env://")
    first = {"RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    assert find_world(first, is_even=False) is not None
    with pytest.raises(BadInput) as caught:
        find_world(first)
    assert caught.value.field == "LOCAL_WORLD_SIZE"
    with pytest.raises(BadInput) as caught:
        find_world({**first, "LOCAL_RANK": "4"}, is_even=False)
    assert caught.value.field == "LOCAL_RANK"


def test_a_slowed_rank_really_computes_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    label = SimpleNamespace(slowed=Slowed(2.5))
    rank = Rank(None, None, "gloo", SimpleNamespace(type="cpu"), None, label)  # type: ignore[arg-type]
    monkeypatch.setattr(Rank, "time", lambda self, call, n=1: [call() for _ in range(n)] and 1.0)
    assert rank.time_work(lambda: calls.append(1), 3) == 2.5
    assert len(calls) == 15

    import torch

    clock = Clock(torch, torch.device("cpu"), flushed=False)
    calls.clear()
    monkeypatch.setattr(clock, "_now", lambda: float(len(calls)))
    assert clock.slower(lambda: calls.append(1), (), Fraction(5, 2)) == 2.5
    assert len(calls) == 3  # the last counts half


def _plan(blocks: list[tuple[str, int]], size: int = 2) -> dict[str, object]:
    places = [
        {
            "name": name,
            "group": name,
            "kind": name.upper(),
            "blocks": [n for n, (group, _) in enumerate(blocks) if group == name],
            "memory_limit_bytes": 1.0,
            "peak_bytes": 1,
            "compute_s": 1.0,
            "communication_s": 1.0,
        }
        for name in dict.fromkeys(group for group, _ in blocks)
    ]
    return {
        "gpus": size * len(blocks),
        "cluster": {
            "bundle": "",
            "block_size": size,
            "blocks": [{"group": group, "node": node} for group, node in blocks],
            "proportions": [],
            "places": places,
        },
    }


def test_hosts_of_a_plan_on_several_kinds() -> None:
    plan = _plan([("v", 0), ("v", 0), ("p", 1), ("p", 2)])
    assert hosts_of(plan) == [Host("V", 4), Host("P", 2), Host("P", 2)]
    assert hosts_of({"gpus": 8}) == []
    for wrong in (
        _plan([("v", 1), ("p", 0)]),
        _plan([("v", 0), ("p", 0)]),
        {**plan, "gpus": 7},
    ):
        with pytest.raises(BadInput, match=r"plan\.cluster"):
            hosts_of(wrong)


def test_agents_of_a_kind() -> None:
    v100 = {"kind": "Tesla V100-PCIE-16GB"}
    gpus = {"devices": [v100, v100, {"kind": "NVIDIA L4"}, {**v100, "used_by_others": True}]}
    assert slots_of_kind(gpus, 4, "V100-PCIe-16GB") == 2
    assert slots_of_kind({**gpus, "kind": "slow"}, 4, "V100-PCIe-16GB") == 0
    assert slots_of_kind({"kind": "slow"}, 4, "slow") == 4
    assert slots_of_kind({}, 4, "fast") == 0
    assert list(kinds_in(gpus)) == ["Tesla V100-PCIE-16GB", "NVIDIA L4"]
    assert not kinds_in({})
