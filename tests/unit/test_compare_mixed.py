"""Other systems on several kinds of devices: what they are, and what the document says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from harness.models.comparison_models import hardware as of_one_kind
from harness.models.comparison_models import residual_block
from harness.models.mixed_cases import mixed_case
from shardwise import documents
from shardwise.cli.compare import _tables
from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.mixed.sums import ServerSum
from shardwise.cost.options import NEVER, Options, quiet
from shardwise.cost.space import EVEN
from shardwise.errors import BadInput, Cancelled
from shardwise.hardware import (
    Blocks,
    Devices,
    Hardware,
    JointLinks,
    RingLinks,
    hardware_from_document,
)
from shardwise.peers import compare
from shardwise.peers.mixed import flexflow, post
from shardwise.peers.mixed.alone import slowest_hardware
from shardwise.peers.mixed.data_parallel import even_collective, is_ring
from shardwise.peers.mixed.space import Space, lacks
from shardwise.pictures.compare import compare_picture
from shardwise.search.mixed.incumbents import Wish, strategies
from shardwise.search.mixed.search import MixedDraft
from shardwise.search.search import Subject

BUNDLE = "fast=2,slow=4"
METHODS = [
    "ev-ps",
    "ev-ar",
    "cp-ps",
    "cp-ar",
    "horovod",
    "flexflow",
    "post",
    "only-fast",
    "only-slow",
    "slowest",
    "shardwise",
]


def cluster(memory_bytes: int = 2**34) -> Hardware:
    """Returns one node of 2 fast devices and two nodes of 2 slow ones."""
    device = {
        "memory_bandwidth_bytes_per_s": 5e11,
        "compute_efficiency": 0.6,
        "memory_efficiency": 0.75,
        "kernel_latency_s": 5e-6,
        "count": 1,
    }
    link = {"latency_s": 1e-5, "efficiency": 1.0}
    return hardware_from_document(
        {
            "schema": "shardwise.hardware/1",
            "name": "two-kinds",
            "provenance": "test",
            "devices": [
                {
                    "kind": "FAST",
                    "memory_bytes": memory_bytes,
                    "peak_flops_per_s": {"float32": 2e13},
                    **device,
                },
                {
                    "kind": "SLOW",
                    "memory_bytes": memory_bytes // 2,
                    "peak_flops_per_s": {"float32": 1e13},
                    **device,
                },
            ],
            "levels": [
                {"name": "inside", "size": 2, "bandwidth_bytes_per_s": 1e10, **link},
                {"name": "between", "size": 3, "bandwidth_bytes_per_s": 1e9, **link},
            ],
            "groups": [
                {"name": "fast", "kind": "FAST", "nodes": 1, "per_node": 2},
                {"name": "slow", "kind": "SLOW", "nodes": 2, "per_node": 2},
            ],
            "sources": {},
        }
    )


GRAPH = residual_block(batch=24)
ONE = Options(micro_batches=(1,))


@pytest.fixture(scope="module")
def document() -> documents.Comparison:
    return compare(GRAPH, cluster(), BUNDLE, ONE, proposals=200)


@pytest.fixture(scope="module")
def space() -> Space:
    return plain_space(cluster())


def plain_space(
    machine: Hardware, links_of: Any = JointLinks, *, keep_beaten: bool = True
) -> Space:
    bundle = Devices.parse(BUNDLE, machine)
    options = replace(ONE, zero=(0,), recompute=NEVER)
    draft = MixedDraft.of(Subject.of(GRAPH), machine, bundle, options, quiet, 1, links_of)
    groups = replace(draft.groups, keep_beaten=keep_beaten)
    return Space.of(replace(draft, groups=groups).joined(quiet))


# The document


def test_every_method_says_what_each_place_takes(document: documents.Comparison) -> None:
    assert [method.method for method in document.methods] == METHODS
    for method in document.methods:
        for point in method.points:
            assert point.places
            limits = [place.memory_limit_bytes for place in point.places]
            fits = all(place.peak_bytes <= place.memory_limit_bytes for place in point.places)
            assert point.feasible == fits
            scaled = [
                place.peak_bytes * document.memory_limit_bytes / limit
                for place, limit in zip(point.places, limits, strict=True)
            ]
            assert point.replayed_peak_bytes == pytest.approx(max(scaled), abs=2)
            assert point.replayed_time_s and point.replayed_time_s >= max(
                place.compute_s for place in point.places
            ) * (1 - 1e-9)
            names = {place.group for place in point.places}
            alone = method.method.removeprefix("only-")
            assert names == ({alone} if alone != method.method else {"fast", "slow"})
            assert sorted(b for place in point.places for b in place.blocks) == (
                {"only-fast": [0], "only-slow": [1, 2]}.get(method.method, [0, 1, 2])
            )


def test_our_answer_has_the_certificate(document: documents.Comparison) -> None:
    ours = document.methods[-1]
    assert document.certificate and document.certificate.epsilon == ours.epsilon is not None
    times = [
        method.points[method.best].replayed_time_s or 0.0
        for method in document.methods
        if method.best is not None
    ]
    assert ours.points[0].replayed_time_s == pytest.approx(min(times))
    (batch,) = document.methods[1].points
    assert document.data_parallel_over_mini_time == {
        "all": pytest.approx((batch.replayed_time_s or 0) / (ours.points[0].replayed_time_s or 1))
    }


def test_it_is_what_its_schema_says(document: documents.Comparison) -> None:
    members = json.loads(msgspec.json.encode(document))
    jsonschema.validate(members, documents.json_schema("compare"))
    assert documents.read(members, documents.Comparison) == document


def test_one_kind_has_no_places() -> None:
    alike = compare(GRAPH, of_one_kind(2), 2, ONE, proposals=10)
    members = msgspec.to_builtins(alike)
    assert all("places" not in p for method in members["methods"] for p in method["points"])


def test_the_table_and_the_picture(
    document: documents.Comparison,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _tables(document)
    printed = capsys.readouterr()
    assert "what each of these steps takes at every place" in printed.out
    assert "the best is server" in printed.out + printed.err
    compare_picture(document).write(str(tmp_path / "picture.svg"))
    assert (tmp_path / "picture.svg").read_bytes().startswith(b"<?xml")


def test_what_does_not_fit_names_the_place_and_what_it_lacks() -> None:
    document = compare(GRAPH, cluster(2**25), BUNDLE, ONE, proposals=20)
    methods = {method.method: method for method in document.methods}
    notes = methods["ev-ar"].notes
    assert methods["ev-ar"].best is None and "ev-ar" not in document.ranking
    assert any(note.startswith("does not fit: ") and "slow (SLOW) lacks" in note for note in notes)


def test_sums_know_no_kinds() -> None:
    with pytest.raises(BadInput, match="several kinds"):
        compare(GRAPH, cluster(), BUNDLE, Options(overlap=False))
    with pytest.raises(BadInput):
        compare(GRAPH, cluster(), 6, ONE)


def test_what_the_options_forbid_is_left_out() -> None:
    options = replace(ONE, zero=(3,))
    document = compare(GRAPH, cluster(), BUNDLE, options)
    assert [m.method for m in document.methods] == METHODS[7:]


@pytest.mark.parametrize("stage", ["EV-AR", "FlexFlow: random walk", "Post: sampling", "Only slow"])
def test_it_can_be_cancelled(stage: str) -> None:
    with pytest.raises(Cancelled):
        compare(
            GRAPH,
            cluster(),
            BUNDLE,
            ONE,
            progress=lambda name, fraction: not name.startswith(stage),
            proposals=20,
        )


# What they are


def test_servers_sum_all_gradients(space: Space) -> None:
    """Also where a collective beats them in everything, which our own search leaves out."""
    sums = space.problem.context.mesh.gradient_sums
    kinds = [n for n, one in enumerate(sums) if isinstance(one, ServerSum)]
    assert len(kinds) == 2
    for kind in kinds:
        (rows,) = strategies(space.problem, [Wish(EVEN, kind, 0, recompute=False)])
        for cost, row in zip(space.problem.costs, rows.tolist(), strict=True):
            has = cost.parameter_bytes[row] > 0
            assert not has or cost.gradient_sum[row] == kind
    few = plain_space(cluster(), keep_beaten=False).problem
    assert sum(len(c.time_s) for c in few.costs) < sum(len(c.time_s) for c in space.problem.costs)


def test_horovod_is_no_faster_than_the_better_of_ring_and_hierarchical(space: Space) -> None:
    ring = plain_space(cluster(), RingLinks)
    start = even_collective(space.problem)
    (ours,) = space.points(start[None])
    (theirs,) = ring.points(even_collective(ring.problem)[None])
    assert theirs.ranking_s >= ours.ranking_s
    assert is_ring(space.problem) == (theirs.ranking_s == ours.ranking_s)


def test_the_walk_is_as_one_by_one(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    start = even_collective(space.problem)
    whole = flexflow.random_walk(space, start, quiet, 200, seed=3)
    monkeypatch.setattr(flexflow, "AT_ONCE", 1)
    single = flexflow.random_walk(space, start, quiet, 200, seed=3)
    assert (whole.choices == single.choices).all()
    assert (whole.time_s, whole.accepted) == (single.time_s, single.accepted)
    assert whole.time_s <= whole.start_s and whole.accepted


def test_placements_are_on_one_block_each(space: Space) -> None:
    placed = post.place(space, quiet, seed=1, samples=120)
    again = post.place(space, quiet, seed=1, samples=120)
    assert (placed.choices == again.choices).all()
    proportions = space.problem.cluster.proportions
    for cost, row in zip(space.problem.costs, placed.choices.tolist(), strict=True):
        assert len(proportions[cost.proportion[row]].support) == 1
        assert (cost.assignment[row, 1:] == -1).all()
        assert cost.gradient_sum[row] == COLLECTIVE


def test_the_slowest_is_the_least_of_all() -> None:
    machine = cluster()
    slow = slowest_hardware(Blocks.of(machine, Devices.parse(BUNDLE, machine)))
    assert slow.devices[0].kind == "SLOW"
    assert slow.devices[0].memory_bytes == 2**33
    assert (slow.devices[0].count, [level.size for level in slow.levels]) == (2, [2, 3])
    assert slow.levels[1].bandwidth_bytes_per_s == 1e9
    assert not slow.groups


def test_what_a_strategy_lacks(space: Space) -> None:
    (point,) = space.points(even_collective(space.problem)[None])
    assert not lacks(point)
    tight = [replace_limit(place, place.peak_bytes - 2**29) for place in point.places[:1]]
    text = lacks(replace(point, places=(*tight, *point.places[1:])))
    assert text.startswith("does not fit: fast (FAST) lacks 0.50 GiB")


def replace_limit(place: Any, limit: float) -> Any:
    return msgspec.structs.replace(place, memory_limit_bytes=limit)


def test_cases_are_the_same_for_a_seed() -> None:
    one, two = mixed_case(5), mixed_case(5)
    assert (one.graph, one.hardware.id, one.bundle) == (two.graph, two.hardware.id, two.bundle)
    assert np.unique([mixed_case(seed).hardware.id for seed in range(20)]).size == 20
