"""Curves over HTTP while they are computed, and many in one call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.service.service_harness import System, wait_until
from harness.service.steps import HARDWARE, mlp, upload
from shardwise.client import Client

LONG = 1000
"""Counts of a curve that is not soon done."""


@pytest.fixture(scope="module")
def graph(system: System) -> str:
    return upload(system.service, mlp(36, "growing"))


def _known(document: dict[str, Any]) -> list[int]:
    return [point["gpus"] for point in document.get("so_far", {}).get("points", [])]


def test_a_curve_that_is_computed_shows_what_is_known(system: System, graph: str) -> None:
    query: dict[str, Any] = {"graph": graph, "hardware": HARDWARE, "max_gpus": LONG}
    first = system.client.get("/v1/curves", params=query)
    assert first.status_code == 202
    assert 1 <= int(first.headers["Retry-After"]) <= 60
    location = first.headers["Location"]
    try:
        grown = wait_until(
            lambda: _known(system.client.get("/v1/curves", params=query).json()), "a count is known"
        )
        assert grown[0] == 1
        so_far = system.client.get(location).json()["so_far"]
        assert len(so_far["points"]) + len(so_far["missing"]) == LONG
        assert so_far["missing"][-1] == {"gpus": LONG, "reason": "not computed yet"}
        with system.client.stream("GET", f"{location}/events") as stream:
            seen: list[int] = []
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    job = msgspec.json.decode(line.removeprefix("data:"))
                    seen += [point["gpus"] for point in job.get("points", [])]
                if len(seen) > len(so_far["points"]):
                    break
        assert len(set(seen)) == len(seen), "each point is sent once"
        assert {point["gpus"] for point in so_far["points"]} <= set(seen)
    finally:
        system.client.delete(location)
        system.service.ended(location)


def test_counts_and_a_space_are_asked_by_query_by_body_and_by_clients(
    system: System, graph: str
) -> None:
    query = {"graph": graph, "hardware": HARDWARE, "counts": "4,2", "space": "deepspeed"}
    location = system.client.get("/v1/curves", params=query).headers["Location"]
    curve = system.service.ended(location)["result"]
    assert (curve["counts"], curve["space"]) == ([2, 4], "deepspeed")
    assert curve["points"][0]["speedup"] == 1.0
    body = {**query, "counts": [2, 4, 4]}
    assert system.client.post("/v1/curves", json=body).json()["result"] == curve
    with Client(system.service.url) as client:
        again = client.curve(graph, HARDWARE, counts=[4, 2], space="deepspeed")
    assert msgspec.to_builtins(again) == curve
    answer = system.client.get("/v1/curves", params={**query, "counts": "2,x"})
    assert answer.status_code == 422
    assert answer.json()["field"] == "counts"
    whole = system.client.get("/v1/curves", params={**query, "max_gpus": 4})
    assert whole.json()["detail"].startswith("counts: both max_gpus 4 and counts")


def test_many_curves_are_asked_in_one_call(system: System, graph: str) -> None:
    questions: list[dict[str, Any]] = [
        {"graph": graph, "hardware": HARDWARE, "counts": [1, 2]},
        {"graph": "sha256:" + "0" * 64, "hardware": HARDWARE, "max_gpus": 2},
        {"graph": graph, "hardware": HARDWARE, "max_gpus": 3, "options": {"epsilon": -1}},
        {"graph": graph, "hardware": HARDWARE, "counts": [2, 3]},
    ]

    def ask() -> dict[str, Any]:
        answer = system.client.post("/v1/curves/bulk", json={"questions": questions})
        assert answer.status_code in (200, 202), answer.text
        if answer.status_code == 202:
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
        return {"status": answer.status_code, **answer.json()}

    document = wait_until(
        lambda: document if (document := ask())["status"] == 200 else None, "all are known"
    )
    first, missing, wrong, last = document["items"]
    assert first["state"] == last["state"] == "done"
    assert [point["gpus"] for point in last["result"]["points"]] == [2, 3]
    assert first["etag"]
    assert missing["error"]["status"] == 404
    assert wrong["error"]["field"] == "options.epsilon"
    with Client(system.service.url) as client:
        assert client.curves(questions)["items"][0] == first
    answer = system.client.post("/v1/curves/bulk", json={"questions": []})
    assert answer.status_code == 422
