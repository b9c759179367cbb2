"""What a frontier's points say of themselves adds up to what they cost."""

from __future__ import annotations

import pytest

from harness import answers
from shardwise import documents
from shardwise.answers import Options
from shardwise.answers.explain import choice_text
from shardwise.capture import shipped_graph
from shardwise.errors import NotFound
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware

CASES = {
    "one GPU": (1, Options(overlap=False, epsilon=0.1)),
    "four": (4, Options(overlap=False, epsilon=0.1)),
    "recomputed": (
        2,
        Options(overlap=False, epsilon=0.3, recompute="always", micro_batches=(1, 2)),
    ),
    "tofu": (4, Options(overlap=False, method="tofu")),
}


@pytest.mark.parametrize("case", CASES)
def test_the_parts_add_up(case: str) -> None:
    gpus, options = CASES[case]
    graph, hardware = read_graph(shipped_graph("vgg16")), load_hardware("dgx-v100-16gb")
    document = answers.frontier(graph, hardware, gpus, options)
    groups = document["search"]["groups"]
    assert document["points"]
    for point in document["points"]:
        assert sum(point["memory"].values()) == pytest.approx(point["memory_bytes"], abs=3)
        assert sum(point["time"].values()) == pytest.approx(point["time_s"], rel=1e-9)
        assert point["time"]["compute_s"] == pytest.approx(point["compute_s"], rel=1e-12)
        counts = [split["groups"] for split in point["splits"]]
        assert counts == sorted(counts, reverse=True)
        if point["other_splits"] == 0:
            assert sum(counts) == groups
        else:
            assert sum(counts) + point["other_splits"] <= groups


@pytest.mark.parametrize("where", [0, -1, None])
def test_the_splits_are_those_of_the_points_plan(where: int | None) -> None:
    graph, hardware = read_graph(shipped_graph("vgg16")), load_hardware("dgx-v100-16gb")
    options = Options(overlap=False, epsilon=0.1)
    points = answers.frontier(graph, hardware, 4, options)["points"]
    point = points[len(points) // 2 if where is None else where]
    plan = answers.plan(graph, hardware, 4, point=point["plan_id"], options=options)
    assert (plan["id"], plan["objective"]) == (point["plan_id"], "point")
    typed = documents.read(plan, documents.Plan)
    texts = [choice_text(group, typed.mesh.axes) for group in typed.groups]
    for split in point["splits"]:
        assert texts.count(split["split"]) == split["groups"]
    assert len(set(texts)) == len(point["splits"]) + point["other_splits"]
    assert plan["predicted"]["memory_bytes"] == point["memory_bytes"]


def test_a_point_that_is_not_there() -> None:
    graph, hardware = read_graph(shipped_graph("vgg16")), load_hardware("dgx-v100-16gb")
    with pytest.raises(NotFound, match="has no point"):
        answers.plan(
            graph, hardware, 2, point="sha256:0", options=Options(overlap=False, epsilon=0.3)
        )
