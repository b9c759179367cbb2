"""A Ray of three hosts schedules what our exports say, and trains by a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from harness.answers import curve
from harness.containers.ray_cluster import GPUS, NODES, RayCluster, running_ray
from harness.containers.trained_net import a_batch, a_net
from harness.execute.strategies import Strategies
from harness.kinds import FAST, SLOW, profile
from shardwise.answers import Options, plan
from shardwise.capture.model import Model
from shardwise.execute.captured import capture_module
from shardwise.hardware import load_hardware
from shardwise.schedulers.formats import export, export_plan

pytestmark = [pytest.mark.engine, pytest.mark.torch]

ALIKE = load_hardware("dgx-v100-16gb")
QUICK = Options(micro_batches=(1,), time_limit_s=120.0)
ALL = len(NODES) * GPUS


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with running_ray(tmp_path_factory.mktemp("ray")) as cluster:
        yield cluster


def graph() -> Any:
    return capture_module(Model(a_net(), a_batch()), "net").graph


def test_ray_train_schedules_what_the_curve_says_and_trains_by_a_plan(ray: RayCluster) -> None:
    document = curve(graph(), ALIKE, ALL, QUICK)
    for point in document["points"]:
        if point["gpus"] == ALL:  # so small a module is fastest on one
            point |= dict.fromkeys(("time_s", "replayed_time_s"), 1e-09)
    scaling = json.loads(export(document, "ray"))
    assert scaling["num_workers"] == [1, ALL]
    # A plan of so small a module would compute all of it on every rank.
    chosen = Strategies(graph()).plan(ALL, 0)
    given = {"scaling": scaling, "plan": chosen, "folder": str(ray.folder)}
    trained = ray.run("ray_train.py", given)
    # Elastic training takes as many workers as there are, each with a GPU of its own.
    assert [rank for rank, _, _ in trained["places"]] == list(range(ALL))
    gpus = sorted((host, number) for _, host, numbers in trained["places"] for number in numbers)
    assert gpus == [(host, number) for host in NODES for number in range(GPUS)]
    assert trained["off"] < 1e-5


def test_a_plans_hosts_are_those_of_their_kind(ray: RayCluster) -> None:
    """The kinds in another order than the nodes joined."""
    groups = [("p100", "slow", 1, GPUS), ("v100", "fast", 1, GPUS)]
    hardware = profile(groups, {"fast": FAST, "slow": SLOW})
    chosen = plan(graph(), hardware, f"p100={GPUS},v100={GPUS}", options=QUICK)
    placed = ray.run("ray_hosts.py", json.loads(export_plan(chosen, "ray")))
    kinds = {"p100": "node2", "v100": "node1"}
    assert placed == [kinds[group] for group, _, _ in chosen.cluster.hosts()]  # type: ignore[union-attr]
