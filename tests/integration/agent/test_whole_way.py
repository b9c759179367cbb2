"""The whole way over two hosts: measure them, plan with the profile, run the plan or the pipeline,
compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("service.routes.agents", reason="needs shardwise[service] with agents")

from harness.agent.agent_harness import wait_for
from harness.agent.cluster import Cluster, running_cluster
from harness.commands import succeed
from harness.tiers import some

pytestmark = pytest.mark.torch

SOURCE = "zoo:mlp:layers=2,inputs=32,hidden=64,classes=8,batch=16"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("whole-way"), lease_s=30, hosts=2) as running:
        yield running
        running.assert_no_orphan()


def launch(cluster: Cluster, **request: Any) -> dict[str, Any]:
    """A launch that has ended well."""
    answer = cluster.http.post("/v1/launches", json=request)
    assert answer.status_code == 201, answer.text
    return cluster.wait_state(str(answer.json()["id"]), "done")


def graph(cluster: Cluster) -> str:
    file = cluster.folder / "graph.json"
    succeed("capture", SOURCE, "-o", str(file))
    answer = cluster.http.post("/v1/graphs", content=file.read_bytes())
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["id"])


def plan(cluster: Cluster, graph_id: str, hardware: str, **asked: Any) -> dict[str, Any]:
    options = {"pins": ["zero=0"], "micro_batches": [1]}  # the graph alone is one batch
    body = {"graph": graph_id, "hardware": hardware, "gpus": 2, "options": options, **asked}
    answer = cluster.http.post("/v1/plans", json=body)
    assert answer.status_code == 202, answer.text
    accepted = answer.json()

    def ended() -> dict[str, Any] | None:
        job: dict[str, Any] = cluster.http.get(accepted["location"]).json()
        return job if job["state"] in ("done", "failed") else None

    job: dict[str, Any] = wait_for(ended, "the plan", 120)
    assert job["state"] == "done", job
    document: dict[str, Any] = job["result"]
    return document


def test_measure_plan_run_compare_refit(cluster: Cluster, tmp_path: Path) -> None:
    measuring = ["--time-limit=5", "--max-size=64KiB", "--collectives", "--quiet"]
    launch(
        cluster, kind="measure", agents=2, ranks_per_agent=1, hardware="pair", arguments=measuring
    )
    profiles = cluster.http.get("/v1/hardware").json()["items"]
    profile = next(p for p in profiles if p["name"] == "pair")
    assert profile["measured"] and profile["max_nodes"] >= 2
    document = cluster.http.get(f"/v1/hardware/{profile['id']}").json()
    assert {t["nodes"] for t in document["collectives"]} == {2}

    chosen = plan(cluster, graph(cluster), profile["id"])
    assert chosen["hardware_id"] == profile["id"]
    ran = launch(cluster, plan_id=chosen["id"], agents=2, arguments=["--steps=4"])
    (run,) = ran["runs"]
    assert (run["hardware"], run["graph"]) == (profile["id"], chosen["graph"])
    assert abs(run["errors"]["peak"]) < 0.5
    accuracy = cluster.http.get("/v1/accuracy").json()["items"]
    assert any(row["hardware"] == profile["id"] for row in accuracy)
    text = cluster.http.get("/metrics").text
    assert "shardwise_prediction_relative_error_count{" in text

    answer = cluster.http.post(f"/v1/hardware/{profile['id']}/refits", json={})
    assert answer.status_code == 201, answer.text
    versions = cluster.http.get(f"/v1/hardware/{answer.json()['id']}/versions").json()["items"]
    assert len(versions) == 2
    again = plan(cluster, chosen["graph"], answer.json()["id"])
    measured_s = chosen["predicted"]["compute_s"] * (1 + run["errors"]["compute"])
    off = abs(measured_s / again["predicted"]["compute_s"] - 1)
    assert off < max(abs(run["errors"]["compute"]), 0.05)


# A plan is launched by its id above, a pipeline here as a document.
@pytest.mark.parametrize("how", some(["plan", "plan_id"], lambda how: how == "plan"))
def test_a_pipeline_runs_on_two_hosts(cluster: Cluster, how: str) -> None:
    options = {"micro_batches": [4]}
    pipeline = plan(cluster, graph(cluster), "l4", stages=[2], options=options)
    assert pipeline["schema"] == "shardwise.pipeline/1"
    given = {"agents": 2, "arguments": [f"--source={SOURCE}", "--steps=4"]}
    ran = launch(cluster, **{how: pipeline["id"] if how == "plan_id" else pipeline}, **given)
    assert ran["summary"]["predicted"]["step_s"] == pipeline["predicted"]["step_s"]
    (run,) = ran["runs"]
    stages = run["measurement"]["stages"]
    assert [stage["stage"] for stage in stages] == [0, 1]
    assert all(abs(stage["peak_error"]) < 0.5 for stage in stages), stages
