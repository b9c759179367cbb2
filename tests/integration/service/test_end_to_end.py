"""The same questions on both back ends: upload, frontier, events, curve, plan, quote, the rest."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import pytest

from harness.answers import curve, frontier
from harness.answers import document as as_document
from harness.service.service_harness import System, wait_until
from harness.service.steps import HARDWARE, mlp, upload
from shardwise import answers as advice
from shardwise.answers import AllocationJob, Options, allocate, job_from_curve
from shardwise.answers.allocation import CurvePoint
from shardwise.graph import canonical_json, graph_id
from shardwise.hardware import hardware_document, load_hardware


def asked(system: System, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The job of a question once it has ended."""
    answer = system.client.post(path, json=body)
    assert answer.status_code in (200, 202), answer.text
    return system.service.ended(answer.headers["Location"])


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Without what a search took."""
    return {key: value for key, value in document.items() if key != "search"}


def test_a_graph_is_stored_once_and_found_again(system: System) -> None:
    graph = mlp(16)
    data = canonical_json(graph)
    first = system.client.post("/v1/graphs", content=data)
    assert first.status_code == 201
    assert first.json()["id"] == graph_id(graph)
    assert first.json()["operators"] == 2
    packed = gzip.compress(data)
    again = system.client.post("/v1/graphs", content=packed, headers={"Content-Encoding": "gzip"})
    assert again.status_code == 200
    assert system.client.post("/v1/graphs", content=packed).status_code == 200
    where = first.headers["Location"]
    assert system.client.get(f"{where}/document").content == data
    assert system.client.delete(where).status_code == 204
    assert system.client.get(where).status_code == 404
    assert system.client.get(f"{where}/document").status_code == 404


def test_an_onnx_file_becomes_a_graph(system: System) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    w = helper.make_tensor("w", TensorProto.FLOAT, [16, 4], [0.5] * 64)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y], [w]), opset_imports=[helper.make_opsetid("", 17)]
    )
    headers = {"Content-Type": "application/onnx"}
    body = model.SerializeToString()
    answer = system.client.post("/v1/graphs?name=tiny&batch=8", content=body, headers=headers)
    assert answer.status_code == 201, answer.text
    assert answer.json()["name"] == "tiny"
    assert answer.json()["batch_size"] == 8
    open_size = system.client.post("/v1/graphs", content=body, headers=headers)
    assert open_size.status_code == 422
    assert "batch" in open_size.json()["expected"]
    broken = system.client.post("/v1/graphs", content=body[:40], headers=headers)
    assert broken.status_code == 422
    assert onnx.__version__


def test_a_frontier_is_the_librarys(system: System) -> None:
    graph = mlp(64)
    upload(system.service, graph)
    question = {"graph": graph_id(graph), "hardware": HARDWARE, "gpus": 4}
    answer = system.client.post("/v1/frontiers", json=question)
    assert answer.status_code == 202
    assert answer.headers["Retry-After"]
    location = answer.headers["Location"]
    job = system.service.ended(location)
    assert job["state"] == "done"
    expected = frontier(graph, load_hardware(HARDWARE), 4)
    assert comparable(job["result"]) == comparable(expected)
    known = system.client.post("/v1/frontiers", json=question)
    assert known.status_code == 200
    assert known.json()["id"] == job["id"]
    etag = known.headers["ETag"]
    assert system.client.get(location, headers={"If-None-Match": etag}).status_code == 304
    assert system.client.get(f"/v1/jobs/{job['id']}").json() == job
    assert system.client.get(f"/v1/plans/{job['id']}").status_code == 404


def test_events_tell_of_progress_and_end(system: System) -> None:
    for gpus in (7, 8, 9):
        body = {
            "graph": "shipped:gpt2", "hardware": "dgx-h100", "max_gpus": gpus,
            "options": {"overlap": False},
        }  # fmt: skip
        answer = system.client.post("/v1/curves", json=body)
        assert answer.status_code == 202
        events = system.service.events(answer.headers["Location"])
        names = [name for name, _ in events]
        assert names[-1] == "done"
        if len(names) > 1:
            break  # else the job had ended when the stream began
    assert set(names[:-1]) == {"progress"}
    assert {job["state"] for _, job in events} >= {"running", "done"}
    running = [job["progress"] for _, job in events if job["state"] == "running"]
    assert any(0 < fraction <= 1 for fraction in running)


def test_a_curve_by_query(system: System) -> None:
    graph = mlp(48)
    upload(system.service, graph)
    query = {"graph": graph_id(graph), "hardware": HARDWARE, "max_gpus": "4", "epsilon": "0.02"}
    answer = system.client.get("/v1/curves", params=query)
    assert answer.status_code == 202
    assert system.service.ended(answer.headers["Location"])["state"] == "done"
    expected = curve(graph, load_hardware(HARDWARE), 4, Options(epsilon=0.02))
    for _ in range(2):  # from the store, then from memory
        known = system.client.get("/v1/curves", params=query)
        assert known.status_code == 200
        assert comparable(known.json()) == comparable(expected)
    etag = known.headers["ETag"]
    same = system.client.get("/v1/curves", params=query, headers={"If-None-Match": etag})
    assert same.status_code == 304
    assert same.content == b""
    other = system.client.get("/v1/curves", params=query, headers={"If-None-Match": '"x"'})
    assert other.status_code == 200


def test_plans_and_infeasible_ones(system: System) -> None:
    shipped = {"graph": "shipped:vgg16", "hardware": HARDWARE, "options": {"micro_batches": [1]}}
    job = asked(system, "/v1/plans", {**shipped, "gpus": 2, "objective": "mini-memory"})
    plan = job["result"]
    assert plan["schema"] == "shardwise.plan/1"
    assert plan["objective"] == "mini-memory"
    stored = system.client.get(f"/v1/plans/{plan['id']}")
    assert stored.status_code == 200
    assert stored.json()["result"]["id"] == plan["id"]
    tight = {"memory_limit_bytes": 1000.0, "micro_batches": [1]}
    body = {**shipped, "graph": upload(system.service, mlp(24)), "gpus": 1, "options": tight}
    infeasible = asked(system, "/v1/plans", body)
    assert infeasible["state"] == "done"
    assert infeasible["result"]["schema"] == "shardwise.infeasible/1"
    assert "GiB" in infeasible["result"]["reason"]


def test_quotes_from_given_offers(system: System) -> None:
    offers = (
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Provider\n"
        "small,V100,1,2.5,here,me\nlarge,V100,8,20,here,me\nother,A10G,8,16,here,me\n"
    )
    graph = mlp(24)
    upload(system.service, graph)
    body = {"graph": graph_id(graph), "offers_csv": offers, "steps": 1000, "max_instances": 2}
    quote = asked(system, "/v1/quotes", body)["result"]
    assert {row["provider"] for row in quote["offers"]} == {"me"}
    assert {row["hardware"] for row in quote["offers"]} == {"dgx-v100-16gb", "gpu:A10G"}
    assert quote["offers"][0]["usd_total"] <= quote["offers"][-1]["usd_total"]
    files = offers.replace("Provider\n", "Provider,Hardware\n").replace(
        ",me\n", ",me,/etc/x.json\n"
    )
    for named in (files, files.replace("/etc/x.json", "gpu:A11G")):
        refused = system.client.post("/v1/quotes", json={**body, "offers_csv": named})
        assert refused.status_code == 422
        assert refused.json()["field"] == "offers_csv: Hardware"


def test_hardware_of_ones_own(system: System) -> None:
    document = {**hardware_document(load_hardware("l4")), "name": "mine"}
    document = json.loads(json.dumps(document))
    answer = system.client.post("/v1/hardware", json=document)
    assert answer.status_code == 201
    hardware_id = answer.json()["id"]
    assert system.client.post("/v1/hardware", json=document).status_code == 200
    listed = system.client.get("/v1/hardware").json()
    assert hardware_id in [item["id"] for item in listed["items"]]
    assert HARDWARE in [item["name"] for item in listed["builtin"]]
    assert system.client.get(f"/v1/hardware/{hardware_id}").json() == document
    body = {"graph": upload(system.service, mlp(41)), "hardware": f"{hardware_id}*2", "gpus": 2}
    assert asked(system, "/v1/frontiers", body)["result"]["hardware"] == "mine"
    assert system.client.delete(f"/v1/hardware/{hardware_id}").status_code == 204
    assert system.client.get(f"/v1/hardware/{hardware_id}").status_code == 404
    assert system.client.post("/v1/frontiers", json=body).status_code == 404


def test_an_allocation_from_curves_that_are_computed(system: System) -> None:
    graph = mlp(40)
    upload(system.service, graph)
    body = {
        "gpus": 4,
        "objective": "max-min",
        "jobs": [
            {"name": "known", "curve": {"points": [{"gpus": 1, "time_s": 1.0}]}},
            {"name": "asked", "graph": graph_id(graph), "hardware": HARDWARE},
        ],
    }
    answer = system.client.post("/v1/allocations", json=body)
    assert answer.status_code == 202
    for job in answer.json()["waiting_for"]:
        assert system.service.ended(job["location"])["state"] == "done"
    shared = system.client.post("/v1/allocations", json=body)
    assert shared.status_code == 200, shared.text
    document = shared.json()
    known = AllocationJob("known", (CurvePoint(1, 1.0, 1.0),))
    computed = job_from_curve(advice.curve(graph, load_hardware(HARDWARE), 4), "asked")
    assert document == as_document(allocate([known, computed], 4, "max-min"))


def test_a_hundred_at_once_cost_one_computation(system: System) -> None:
    graph = mlp(56)
    upload(system.service, graph)
    question = {"graph": graph_id(graph), "hardware": HARDWARE, "gpus": 2}
    answers: list[tuple[int, str]] = []

    def ask() -> None:
        answer = system.client.post("/v1/frontiers", json=question)
        answers.append((answer.status_code, answer.json()["id"]))

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 100
    assert {status for status, _ in answers} <= {200, 202}
    assert len({job for _, job in answers}) == 1
    job = system.service.ended(f"/v1/frontiers/{answers[0][1]}")
    assert (job["state"], job["attempts"]) == ("done", 1)
    listed = system.client.get("/v1/jobs", params={"graph": graph_id(graph)}).json()
    assert len(listed["items"]) == 1


def test_pages_come_to_an_end(system: System) -> None:
    for width in (101, 102, 103, 104, 105):
        upload(system.service, mlp(width, name=f"page-{width}"))
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = system.client.get("/v1/graphs", params=query).json()
        assert len(page["items"]) <= 2
        seen += [item["id"] for item in page["items"]]
        cursor = page["next"]
    assert len(seen) == len(set(seen))
    names = [system.client.get(f"/v1/graphs/{i}").json()["name"] for i in seen[:5]]
    assert names == ["page-105", "page-104", "page-103", "page-102", "page-101"]


def test_an_idempotency_key_repeats_the_answer(system: System) -> None:
    graph = canonical_json(mlp(72))
    headers = {"Idempotency-Key": f"once-{system.kind}"}
    first = system.client.post("/v1/graphs", content=graph, headers=headers)
    again = system.client.post("/v1/graphs", content=graph, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    other = system.client.post("/v1/graphs", content=canonical_json(mlp(73)), headers=headers)
    assert other.status_code == 422
    assert other.json()["type"].endswith("idempotency-key-reused")


def test_health_readiness_metrics_and_the_document(system: System) -> None:
    assert system.client.get("/healthz").json() == {"status": "ok"}
    ready = system.client.get("/readyz").json()
    assert ready["checks"]["database"] == "ok"
    assert ready["checks"]["broker"] == "ok"
    text = system.client.get("/metrics").text
    assert 'shardwise_requests_total{method="GET",route="/readyz",status="200"}' in text
    assert "shardwise_database_up 1.0" in text
    assert "shardwise_queue_oldest_age_seconds" in text
    document = system.client.get("/openapi.json").json()
    assert "/v1/frontiers/{job_id}/events" in document["paths"]
    assert document["paths"]["/v1/frontiers"]["post"]["responses"]["202"]


def test_the_request_id_follows_the_job_into_the_worker(system: System) -> None:
    graph = mlp(80)
    upload(system.service, graph)
    answer = system.client.post(
        "/v1/frontiers",
        json={"graph": graph_id(graph), "hardware": HARDWARE, "gpus": 1},
        headers={"X-Request-Id": "follow-me"},
    )
    assert answer.headers["X-Request-Id"] == "follow-me"
    system.service.ended(answer.headers["Location"])
    worker = system.workers[0] if system.workers else system.service

    def records() -> list[dict[str, Any]]:
        return [r for r in worker.logged("frontier done") if r["request_id"] == "follow-me"]

    # The answer is stored before its line is written.
    wait_until(records, "the worker's line of the job")
    assert len(records()) == 1
