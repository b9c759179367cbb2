"""Questions about several kinds of devices through HTTP and the client."""

from __future__ import annotations

from typing import Any

import pytest

from harness import answers
from harness.fixed_day import DAY
from harness.service.service_harness import System
from harness.service.steps import check, mlp, upload
from shardwise import answers as advice
from shardwise.answers import Options
from shardwise.client import Client
from shardwise.errors import BadInput
from shardwise.hardware import load_hardware

MIXED = "heterog-8"
OPTIONS = {"micro_batches": [1], "time_limit_s": 2.0}
QUICK = Options(micro_batches=(1,), time_limit_s=2.0)
GRAPH = mlp(64, "mixed")


@pytest.fixture(scope="module")
def asked(system: System) -> dict[str, Any]:
    return {"graph": str(upload(system.service, GRAPH)), "hardware": MIXED, "options": OPTIONS}


def ended(system: System, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = system.client.post(path, json=body)
    assert answer.status_code in (200, 202), answer.text
    job: dict[str, Any] = system.service.ended(answer.headers["Location"])
    assert job["state"] == "done", job
    return job


def test_a_plan_is_that_of_the_library(system: System, asked: dict[str, Any]) -> None:
    job = ended(system, "/v1/plans", {**asked, "gpus": "v100=2,p100=2"})
    expected = answers.plan(GRAPH, load_hardware(MIXED), "v100=2,p100=2", options=QUICK)
    assert job["result"]["id"] == expected["id"]
    assert job["result"]["predicted"]["peak_bytes"] == expected["predicted"]["peak_bytes"]
    assert job["question"]["gpus"] == "v100=2,p100=2"


def test_another_spelling_is_the_same_question(system: System, asked: dict[str, Any]) -> None:
    first = ended(system, "/v1/frontiers", {**asked, "gpus": "v100=1,p100=1"})
    again = system.client.post("/v1/frontiers", json={**asked, "gpus": " p100=1 , v100=1"})
    assert again.status_code == 200
    assert again.json()["content_id"] == first["content_id"]
    assert again.json()["result"]["bundle"] == "v100=1,p100=1"
    assert again.json()["result"]["gpus"] == 2
    places = again.json()["result"]["points"][0]["places"]
    assert {place["place"].partition(".")[0] for place in places} == {"v100", "p100"}


def test_a_number_as_text_is_refused(system: System, asked: dict[str, Any]) -> None:
    body = {**asked, "hardware": "dgx-v100-16gb", "gpus": "2"}
    answer = system.client.post("/v1/frontiers", json=body)
    assert answer.status_code == 422 and answer.json()["field"] == "gpus"


def test_a_curve_over_bundles_by_query_and_by_body(system: System, asked: dict[str, Any]) -> None:
    query = {
        "graph": asked["graph"], "hardware": MIXED, "micro_batches": "1", "time_limit_s": "2.0",
        "bundles": ["v100=2", "p100=1,v100=1"],
    }  # fmt: skip
    started = system.client.get("/v1/curves", params=query)
    assert started.status_code == 202, started.text
    assert system.service.ended(started.headers["Location"])["state"] == "done"
    for _ in range(2):  # from the store, then from memory
        known = system.client.get("/v1/curves", params=query)
        assert known.status_code == 200
        assert known.json()["bundles"] == ["v100=2", "v100=1,p100=1"]
    other = {**query, "bundles": ["v100=1,p100=1", "v100=2"]}
    etag = {"If-None-Match": known.headers["ETag"]}
    assert system.client.get("/v1/curves", params=other, headers=etag).status_code == 304
    posted = system.client.post("/v1/curves", json={**asked, "bundles": other["bundles"]})
    assert posted.status_code == 200
    assert posted.json()["result"] == known.json()


def test_a_quote_over_a_profile(system: System, asked: dict[str, Any]) -> None:
    prices = {"v100": 2.5, "1080ti": 0.4, "p100": 1.4}
    options = {**OPTIONS, "time_limit_s": 1.0}
    job = ended(system, "/v1/quotes", {**asked, "options": options, "prices": prices})
    rows = {row["bundle"]: row for row in job["result"]["offers"]}
    assert rows["v100=2,1080ti=4,p100=2"]["usd_per_hour"] == pytest.approx(9.4)
    assert [part["gpus"] for part in rows["v100=2,1080ti=4"]["parts"]] == [2, 4]
    assert {part["price_as_of"] for part in rows["v100=2,1080ti=4"]["parts"]} == {DAY.isoformat()}


def test_the_client_gives_what_the_library_gives(system: System, asked: dict[str, Any]) -> None:
    with Client(system.service.url) as client:
        plan = client.plan(GRAPH, MIXED, "p100=2,v100=2", options=QUICK)
        local = advice.plan(GRAPH, load_hardware(MIXED), "v100=2,p100=2", options=QUICK)
        assert plan.id == local.id
        curve = client.curve(GRAPH, MIXED, options=QUICK, bundles=["v100=2", "v100=1,p100=1"])
        assert [point.bundle for point in curve.points] == curve.bundles
        with pytest.raises(BadInput, match="gpus: 4 devices of an unspecified group"):
            client.plan(GRAPH, MIXED, 4, options=QUICK)


@pytest.mark.parametrize(
    ("path", "more", "field", "said"),
    [
        ("plans", {"gpus": 4}, "gpus", "of an unspecified group"),
        ("plans", {"gpus": "k80=1"}, "gpus", "unknown group 'k80'"),
        ("plans", {"gpus": "v100=3"}, "gpus", "3 devices of v100"),
        ("plans", {"gpus": "v" * 1001}, "gpus", "length <= 1000"),
        ("plans", {"gpus": ""}, "gpus", "length >= 1"),
        ("plans", {"gpus": None}, "gpus", "null"),
        ("frontiers", {"gpus": "v100=1,,p100=1"}, "gpus", "got ''"),
        ("frontiers", {"hardware": "dgx-h100", "gpus": "h100=1"}, "gpus", "no groups"),
        ("curves", {"max_gpus": 8}, "max_gpus", "of an unspecified group"),
        ("curves", {}, "bundles", "no bundles"),
        ("curves", {"bundles": ["v100=1", "v100=9"]}, "bundles[1]", "9 devices of v100"),
        ("curves", {"bundles": ["v100=1"] * 65}, "bundles", "length <= 64"),
        ("curves", {"hardware": "dgx-h100", "bundles": ["a=1"]}, "bundles", "no groups"),
        ("curves", {"hardware": "dgx-h100"}, "max_gpus", "missing"),
        ("quotes", {}, "prices.v100", "no offer has"),
        ("quotes", {"prices": {"k80": 1.0}}, "prices.k80", "unknown group"),
        ("quotes", {"combine": 9}, "combine", "9"),
        ("quotes", {"hardware": "dgx-h100"}, "hardware", "no groups"),
    ],
)
def test_bad_input_names_the_field(
    system: System, asked: dict[str, Any], path: str, more: dict[str, Any], field: str, said: str
) -> None:
    refused = system.client.post(f"/v1/{path}", json={**asked, **more})
    problem = check(refused, 422, "invalid")
    assert problem["field"] == field
    assert said in problem["detail"]


def test_lists_and_the_page_name_the_bundle(system: System, asked: dict[str, Any]) -> None:
    job = ended(system, "/v1/plans", {**asked, "gpus": "v100=2,p100=2"})
    listed = system.client.get("/v1/plans", params={"graph": asked["graph"]}).json()["items"]
    assert "v100=2,p100=2" in [item["question"]["gpus"] for item in listed]
    page = system.client.get(f"/jobs/{job['id']}")
    assert page.status_code == 200
    assert "v100=2" in page.text
