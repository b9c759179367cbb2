"""`sky launch --dryrun` through SkyPilot's own server: policy, optimizer, what it would start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.answers import curve, quote
from harness.schedulers.catalog import CLOUDS
from harness.schedulers.skypilot_server import Launch, SkyPilot, running_skypilot
from harness.service.service_harness import Service, wait_until
from harness.service.steps import mlp, upload
from shardwise.graph import Graph, graph_id
from shardwise.hardware import load_hardware, read_offers
from shardwise.schedulers.formats import export

pytestmark = [pytest.mark.full, pytest.mark.needs("rsync")]

SMALL, LARGE = mlp(24), mlp(8192)
"""Cheapest on one GPU, and on eight."""
HARDWARE = "dgx-v100-16gb"
LATE = "launch again"
ADVICE_S = 900.0
"""Patience on a loaded machine; alone it takes 20 s."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("policy"))
    for graph in (SMALL, LARGE):
        upload(started, graph)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def sky(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyPilot]:
    url = f"{service.url}/v1/skypilot/policy"
    with running_skypilot(tmp_path_factory.mktemp("sky"), url) as running:
        yield running


def launch(sky: SkyPilot, name: str, task: dict[str, Any]) -> Launch:
    """Launches as often as the policy says that the advice is still being computed."""
    launches: list[Launch] = []

    def answered() -> bool:
        launches.append(sky.launch(name, json.dumps({"run": "echo hi", **task})))
        return LATE not in launches[-1].text

    wait_until(answered, "the policy has the advice", ADVICE_S)
    return launches[-1]


@pytest.mark.parametrize("graph", [SMALL, LARGE])
def test_the_quotes_first_offer_is_what_skypilot_chooses(sky: SkyPilot, graph: Graph) -> None:
    first = quote(graph, read_offers())["offers"][0]
    done = launch(sky, f"on-{first['instances']}", {"envs": {"SHARDWISE_GRAPH": graph_id(graph)}})
    cloud, instance, usd = done.chosen
    assert (cloud, instance.removesuffix("[Spot]")) == (
        CLOUDS[first["provider"]], first["instance_type"],
    )  # fmt: skip
    assert instance.endswith("[Spot]") == first["spot"]
    assert usd == pytest.approx(first["instances"] * first["usd_per_hour"], abs=0.005)


def test_a_task_by_its_curve_is_ready_to_be_started(sky: SkyPilot) -> None:
    asks = {"SHARDWISE_GRAPH": graph_id(LARGE), "SHARDWISE_HARDWARE": HARDWARE,
            "SHARDWISE_MAX_GPUS": "16"}  # fmt: skip
    points = [p for p in curve(LARGE, load_hardware(HARDWARE), 16)["points"] if p["feasible"]]
    best = min(points, key=lambda p: p["time_s"])["gpus"]
    done = launch(sky, "by-curve", {"envs": asks})
    assert done.ended, done.text
    ready_on_lambda(done, best // 8)


def test_an_exported_task_is_ready_to_be_started(sky: SkyPilot) -> None:
    document = curve(LARGE, load_hardware(HARDWARE), 8)
    done = launch(sky, "exported", json.loads(export(document, "skypilot")))
    assert done.ended, done.text
    ready_on_lambda(done, 1)


def ready_on_lambda(done: Launch, nodes: int) -> None:
    """Asserts that instances of 8 V100 would be started: the cheapest that have them."""
    offer = next(o for o in read_offers() if (o.gpu_kind, o.provider) == ("V100", "lambda"))
    assert done.chosen[:2] == ("Lambda", offer.instance_type)
    assert done.chosen[2] == pytest.approx(nodes * offer.usd_per_hour, abs=0.005)
    assert done.cluster is not None
    head = done.cluster["available_node_types"]["ray_head_default"]["node_config"]
    assert head["InstanceType"] == offer.instance_type
    assert done.cluster["max_workers"] == nodes - 1


def test_a_rejected_task_chooses_nothing_and_says_why(sky: SkyPilot) -> None:
    done = launch(sky, "rejected", {"envs": {"SHARDWISE_GRAPH": "sha256:" + "0" * 64}})
    assert not done.ended
    assert "there is no graph" in done.text
    assert done.cluster is None
