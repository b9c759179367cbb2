"""Watched curves: named, bounded, and metrics that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.service.service_harness import Service, wait_until
from harness.service.steps import mlp, upload
from shardwise.graph import graph_id
from shardwise.hardware import read_offers

GRAPH = graph_id(mlp())
OF_CURVE = {"graph": GRAPH, "hardware": "dgx-v100-16gb", "max_gpus": 4}
CURVE = {**OF_CURVE, "options": {"micro_batches": [1]}}
QUERY = {**OF_CURVE, "micro_batches": "1"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("watches"), max_watched="2")
    upload(started, mlp())
    yield started
    started.stop()


def series(service: Service) -> dict[str, dict[tuple[str, ...], float]]:
    answer = service.client.get("/v1/watches/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return samples


def test_a_watched_curve_becomes_series(service: Service) -> None:
    created = service.client.post("/v1/watches", json={**CURVE, "name": "mlp"})
    assert created.status_code == 201
    assert created.headers["location"] == "/v1/watches/mlp"
    name = "shardwise_watch_iteration_time_seconds"
    samples: dict[str, Any] = wait_until(
        lambda: now if name in (now := series(service)) else None, "the curve is computed"
    )
    curve = service.client.get("/v1/curves", params=QUERY).json()
    feasible = [p for p in curve["points"] if p["feasible"]]
    assert samples[name] == {(str(p["gpus"]), "mlp"): p["replayed_time_s"] for p in feasible}
    assert samples["shardwise_watch_peak_memory_bytes"][("4", "mlp")] == feasible[-1]["peak_bytes"]
    assert samples["shardwise_watch_info"] == {("mlp", "dgx-v100-16gb", "mlp"): 1}
    usd = samples["shardwise_watch_usd_per_million_samples"]
    assert usd.keys() == samples[name].keys()
    whole_node = min(o.usd_per_hour for o in read_offers() if o.hardware == CURVE["hardware"])
    fastest = feasible[-1]["samples_per_s"]
    assert usd[("4", "mlp")] == pytest.approx(whole_node / 3600 / fastest * 1e6)
    assert samples["shardwise_watch_knee_gpus"][("mlp",)] in range(1, 5)


def test_again_is_known_and_another_curve_is_refused(service: Service) -> None:
    assert service.client.post("/v1/watches", json={**CURVE, "name": "one"}).status_code == 201
    assert service.client.post("/v1/watches", json={**CURVE, "name": "one"}).status_code == 200
    other = service.client.post("/v1/watches", json={**CURVE, "name": "one", "max_gpus": 2})
    assert other.status_code == 409
    assert other.json()["type"].endswith(":in-use")
    items = service.client.get("/v1/watches").json()["items"]
    assert "one" in {item["name"] for item in items}
    assert service.client.delete("/v1/watches/one").status_code == 204
    assert service.client.get("/v1/watches/one").status_code == 404
    assert service.client.delete("/v1/watches/one").status_code == 404


def test_the_number_of_watches_is_bounded(service: Service) -> None:
    names = ["a", "b", "c"]
    codes = [
        service.client.post("/v1/watches", json={**CURVE, "name": name}).status_code
        for name in names
    ]
    assert 429 in codes
    assert len(service.client.get("/v1/watches").json()["items"]) == 2
    for name in names:
        service.client.delete(f"/v1/watches/{name}")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "Upper"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 41}, "name"),
        ({"max_gpus": 0}, "max_gpus"),
        ({"max_gpus": 257}, "max_gpus"),
        ({"hardware": "none"}, "hardware"),
        ({"graph": "shipped:none"}, "graph"),
        ({"colour": 1}, None),
    ],
)
def test_what_is_refused(service: Service, change: dict[str, Any], field: str | None) -> None:
    answer = service.client.post("/v1/watches", json={**CURVE, "name": "x", **change})
    assert answer.status_code == 422, answer.text
    assert field is None or answer.json()["field"] == field
    assert "x" not in {w["name"] for w in service.client.get("/v1/watches").json()["items"]}


def test_a_watch_goes_with_its_graph(service: Service) -> None:
    other = upload(service, mlp(48))
    ask = {**CURVE, "graph": other, "max_gpus": 1, "name": "gone"}
    created = service.client.post("/v1/watches", json=ask).json()
    wait_until(
        lambda: service.client.get(created["job"]["location"]).json()["state"] == "done", "curve"
    )
    assert service.client.delete(f"/v1/graphs/{created['graph']}").status_code == 204
    assert service.client.get("/v1/watches/gone").status_code == 404
    assert service.client.get("/v1/watches/metrics").status_code == 200


def test_a_watched_curve_over_bundles_has_series_of_its_own(service: Service) -> None:
    for known in service.client.get("/v1/watches").json()["items"]:
        service.client.delete(f"/v1/watches/{known['name']}")
    bundles = ["p100=1,v100=1", "v100=2"]
    ask = {
        "name": "mixed", "graph": GRAPH, "hardware": "heterog-8", "bundles": bundles,
        "options": {"micro_batches": [1], "time_limit_s": 2.0},
    }  # fmt: skip
    created = service.client.post("/v1/watches", json=ask)
    assert created.status_code == 201, created.text
    assert created.json()["bundles"] == ["v100=2", "v100=1,p100=1"]
    assert created.json()["max_gpus"] == 2
    assert service.client.get("/v1/watches/mixed").json()["bundles"] == created.json()["bundles"]
    name = "shardwise_watch_bundle_iteration_time_seconds"
    samples: dict[str, Any] = wait_until(
        lambda: now if name in (now := series(service)) else None, "the curve is computed"
    )
    assert samples[name].keys() <= {("v100=2", "mixed"), ("v100=1,p100=1", "mixed")}
    assert ("mixed",) not in {
        k[1:] for k in samples.get("shardwise_watch_iteration_time_seconds", {})
    }
    refused = service.client.post("/v1/watches", json={**ask, "name": "other", "max_gpus": 4})
    assert refused.status_code == 422
    assert refused.json()["field"] == "max_gpus"
