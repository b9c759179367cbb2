"""Keys, scopes, and that one tenant's things are nothing to another: for every route."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from harness.service.fake_agent import FakeAgent
from harness.service.service_harness import App, Service, wait_until
from harness.service.steps import HARDWARE, REFUSED, keys, mlp
from service.store.database import Database
from service.store.keys import create_key
from service.store.schema import migrate
from shardwise.graph import canonical_json, graph_id
from shardwise.hardware import hardware_document, load_hardware


class Guarded:
    """A service with the keys of two tenants."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder
        database = Database(f"sqlite:///{folder / 'data' / 'shardwise.sqlite'}")
        migrate(database)
        with database.write() as session:
            self.keys = {
                name: create_key(session, tenant, scopes, rate_per_s=rate)
                for name, tenant, scopes, rate in (
                    ("a", "alpha", ("read", "submit", "admin"), None),
                    ("b", "beta", ("read", "submit", "admin"), None),
                    ("submitter", "alpha", ("read", "submit"), None),
                    ("reader", "alpha", ("read",), None),
                    ("slow", "alpha", ("read",), 0.01),
                )
            }
        database.close()
        limits = {"max_queued": "3", "max_graphs": "4", "anonymous_rate_per_s": "10000"}
        self.service = Service(folder, auth_cache_s="0", **limits)

    def call(self, who: str, method: str, path: str, **keywords: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[who]}", **keywords.pop("headers", {})}
        return self.service.client.request(method, path, headers=headers, **keywords)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    started = Guarded(tmp_path_factory.mktemp("guarded"))
    yield started
    started.service.stop()


@pytest.fixture(scope="module")
def alphas(guarded: Guarded) -> dict[str, str]:
    """What tenant alpha has: a graph, a profile, a plan, a curve."""
    graph = mlp(20)
    assert guarded.call("a", "POST", "/v1/graphs", content=canonical_json(graph)).is_success
    document = {**hardware_document(load_hardware("l4")), "name": "alphas"}
    hardware = guarded.call("a", "POST", "/v1/hardware", json=document).json()["id"]
    body = {"graph": graph_id(graph), "hardware": hardware, "gpus": 1}
    plan = guarded.call("a", "POST", "/v1/plans", json=body).json()["location"]
    body = {"graph": graph_id(graph), "hardware": HARDWARE, "max_gpus": 2}
    curve = guarded.call("a", "POST", "/v1/curves", json=body).json()["location"]

    def done(path: str) -> dict[str, Any] | None:
        job: dict[str, Any] = guarded.call("a", "GET", path).json()
        return job if job["state"] == "done" else None

    for path in (plan, curve):
        wait_until(lambda path=path: done(path), f"{path} is done")
    answer = guarded.call("a", "GET", plan).json()["result"]
    headers = {"Authorization": f"Bearer {guarded.keys['a']}"}
    agent = FakeAgent(guarded.service.client, "alphas-agent", headers=headers)
    body = {"kind": "measure", "agents": 40}
    launch = guarded.call("a", "POST", "/v1/launches", json=body).json()["id"]
    return {
        "agent": agent.id,
        "launch": launch,
        "graph": graph_id(graph),
        "hardware": hardware,
        "plan": plan.rpartition("/")[2],
        "curve": curve.rpartition("/")[2],
        "plan_id": answer["id"],
    }


THEIRS = [
    ("GET", "/v1/graphs/{graph}"),
    ("GET", "/v1/graphs/{graph}/document"),
    ("DELETE", "/v1/graphs/{graph}"),
    ("GET", "/v1/hardware/{hardware}"),
    ("DELETE", "/v1/hardware/{hardware}"),
    ("GET", "/v1/plans/{plan}"),
    ("GET", "/v1/plans/{plan_id}"),
    ("GET", "/v1/plans/{plan}/events"),
    ("GET", "/v1/plans/{plan}/export?to=torchtitan"),
    ("DELETE", "/v1/plans/{plan}"),
    ("GET", "/v1/curves/{curve}"),
    ("GET", "/v1/curves/{curve}/events"),
    ("DELETE", "/v1/curves/{curve}"),
    ("GET", "/v1/jobs/{plan}"),
    ("GET", "/v1/jobs/{plan}/events"),
    ("DELETE", "/v1/jobs/{plan}"),
    ("GET", "/v1/frontiers/{plan}"),
    ("GET", "/v1/frontiers/{plan}/events"),
    ("DELETE", "/v1/frontiers/{plan}"),
    ("GET", "/v1/pricings/{plan}"),
    ("GET", "/v1/pricings/{plan}/events"),
    ("DELETE", "/v1/pricings/{plan}"),
    ("GET", "/v1/comparisons/{plan}"),
    ("GET", "/v1/comparisons/{plan}/events"),
    ("DELETE", "/v1/comparisons/{plan}"),
    ("GET", "/v1/quotes/{plan}"),
    ("GET", "/v1/quotes/{plan}/events"),
    ("DELETE", "/v1/quotes/{plan}"),
    ("GET", "/v1/agents/{agent}"),
    ("DELETE", "/v1/agents/{agent}"),
    ("POST", "/v1/agents/{agent}/drain"),
    ("POST", "/v1/agents/{agent}/undrain"),
    ("POST", "/v1/agents/{agent}/heartbeat"),
    ("GET", "/v1/agents/{agent}/assignments"),
    ("POST", "/v1/agents/{agent}/reports"),
    ("GET", "/v1/launches/{launch}"),
    ("DELETE", "/v1/launches/{launch}"),
    ("GET", "/v1/launches/{launch}/logs"),
    ("GET", "/v1/launches/{launch}/events"),
    ("POST", "/v1/launches/{launch}/runs/{run_id}/accept"),
    ("POST", "/v1/launches/{launch}/runs/{run_id}/reject"),
    ("POST", "/v1/hardware/{hardware}/refits"),
    ("GET", "/v1/hardware/{hardware}/versions"),
]
PRICING = {"graph": "{graph}", "hardware": HARDWARE, "gpus": 1, "configuration": "{}"}
ASKED = [
    ("POST", "/v1/frontiers", {"graph": "{graph}", "hardware": HARDWARE, "gpus": 1}),
    ("POST", "/v1/frontiers", {"graph": "shipped:vgg16", "hardware": "{hardware}", "gpus": 1}),
    ("POST", "/v1/plans", {"graph": "{graph}", "hardware": HARDWARE, "gpus": 1}),
    ("POST", "/v1/curves", {"graph": "{graph}", "hardware": HARDWARE, "max_gpus": 2}),
    ("POST", "/v1/quotes", {"graph": "{graph}"}),
    ("POST", "/v1/pricings", PRICING),
    ("POST", "/v1/comparisons", {"graph": "{graph}", "hardware": HARDWARE, "gpus": 1}),
    ("POST", "/v1/allocations", {"gpus": 2, "jobs": [{"graph": "{graph}", "hardware": HARDWARE}]}),
    ("POST", "/v1/skypilot/policy", {"task": "envs: {SHARDWISE_GRAPH: '{graph}'}"}),
    ("POST", "/v1/launches", {"plan_id": "{plan_id}"}),
    ("POST", "/v1/launches", {"kind": "measure", "operators": "{graph}"}),
    ("POST", "/v1/launches", {"kind": "measure", "agents": ["{agent}"]}),
    ("POST", "/v1/hardware/dgx-h100/refits", {"launches": ["{launch}"]}),
    ("GET", "/v1/curves?graph={graph}&hardware=" + HARDWARE + "&max_gpus=2", None),
    ("GET", "/v1/curves?graph=shipped:vgg16&hardware={hardware}&max_gpus=2", None),
]
LISTS = ["/v1/graphs", "/v1/hardware", "/v1/jobs", "/v1/frontiers", "/v1/plans", "/v1/pricings",
         "/v1/quotes", "/v1/comparisons", "/v1/agents", "/v1/launches", "/v1/accuracy",
         "/v1/usage"]  # fmt: skip
ELSEWHERE = {
    ("POST", "/v1/agents"),
    ("POST", "/v1/agents/tokens"),
    ("GET", "/v1/watches"),
    ("POST", "/v1/watches"),
    ("GET", "/v1/watches/metrics"),
    ("GET", "/v1/watches/{watch}"),
    ("DELETE", "/v1/watches/{watch}"),
    ("GET", "/v1/me"),
    ("GET", "/v1/audit"),
    ("GET", "/v1/keys"),
    ("POST", "/v1/keys"),
    ("GET", "/v1/keys/{key_id}"),
    ("POST", "/v1/keys/{key_id}/rotate"),
    ("DELETE", "/v1/keys/{key_id}"),
    ("GET", "/v1/webhooks"),
    ("POST", "/v1/webhooks"),
    ("GET", "/v1/webhooks/{webhook_id}"),
    ("DELETE", "/v1/webhooks/{webhook_id}"),
    ("POST", "/v1/webhooks/{webhook_id}/test"),
    ("GET", "/v1/webhooks/{webhook_id}/deliveries"),
    ("POST", "/v1/curves/bulk"),
}
"""Enrolment names nothing of anybody's (test_agents.py); alpha has a watch, keys and
webhooks in test_tenancy.py, where an operator's calls and curves in bulk are too."""

OPERATORS = "/v1/tenants"

ID_NAMES = {
    "graphs": "graph_id",
    "hardware": "hardware_id",
    "agents": "agent_id",
    "launches": "launch_id",
}
OPEN = {"/healthz", "/readyz", "/metrics"}


def filled(value: Any, names: dict[str, str]) -> Any:
    text = json.dumps(value)
    for name, actual in names.items():
        text = text.replace("{" + name + "}", actual)
    return json.loads(text)


def missing(answer: httpx.Response, names: dict[str, str]) -> tuple[int, str]:
    """Status and text of an answer, without what only repeats the question."""
    document = answer.json()
    document.pop("request_id")
    text = json.dumps(document)
    for name in names.values():
        text = text.replace(name, "…")
    return answer.status_code, text


@pytest.mark.parametrize(("method", "path"), THEIRS)
def test_another_tenants_resource_is_like_a_missing_one(
    guarded: Guarded, alphas: dict[str, str], method: str, path: str
) -> None:
    missing_names = {name: f"{value[:-8]}00000000" for name, value in alphas.items()}
    theirs = guarded.call("b", method, filled(path, alphas))
    none = guarded.call("b", method, filled(path, missing_names))
    assert theirs.status_code == 404
    assert missing(theirs, alphas) == missing(none, missing_names)


@pytest.mark.parametrize(("method", "path", "body"), ASKED)
def test_a_question_about_another_tenants_resource_is_like_one_about_a_missing_one(
    guarded: Guarded, alphas: dict[str, str], method: str, path: str, body: Any
) -> None:
    missing_names = {name: f"{value[:-8]}00000000" for name, value in alphas.items()}
    answers = [
        guarded.call("b", method, filled(path, names), json=filled(body, names))
        for names in (alphas, missing_names)
    ]
    assert answers[0].status_code == REFUSED.get(path, 404)
    assert missing(answers[0], alphas) == missing(answers[1], missing_names)


@pytest.mark.parametrize("path", LISTS)
def test_lists_show_ones_own(guarded: Guarded, alphas: dict[str, str], path: str) -> None:
    text = guarded.call("b", "GET", path).text
    for value in alphas.values():
        assert value not in text


def test_the_same_graph_is_new_to_each_tenant(guarded: Guarded, alphas: dict[str, str]) -> None:
    """Neither the upload nor the answer's speed tells that another tenant has it."""
    graph = canonical_json(mlp(20))
    assert guarded.call("b", "POST", "/v1/graphs", content=graph).status_code == 201
    body = {"graph": alphas["graph"], "hardware": HARDWARE, "max_gpus": 2}
    assert guarded.call("b", "POST", "/v1/curves", json=body).status_code == 202
    assert guarded.call("b", "GET", f"/v1/curves/{alphas['curve']}").status_code == 404


def test_every_route_is_covered(guarded: Guarded) -> None:
    """A route that is added must be added to these tests."""
    paths = guarded.service.client.get("/openapi.json").json()["paths"]
    tested = {(method, path.partition("?")[0]) for method, path, _ in ASKED}
    tested |= {("GET", path) for path in LISTS}
    tested |= {("POST", "/v1/graphs"), ("POST", "/v1/hardware"), *ELSEWHERE}
    for method, path in THEIRS:
        head, _, rest = path.partition("/{")
        name = ID_NAMES.get(head[4:], "job_id")
        rest = rest.partition("?")[0]
        tested.add((method, f"{head}/{{{name}}}{rest.partition('}')[2]}"))
    for path, operations in paths.items():
        for method in operations:
            known = path in OPEN or path.startswith(OPERATORS)
            assert known or (method.upper(), path) in tested, (method, path)


def test_without_a_key_in_force_nothing_is_served(guarded: Guarded) -> None:
    paths = guarded.service.client.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for method in operations:
            if path in OPEN:
                continue
            for header in ({}, {"Authorization": "Bearer sw_0000000000000000_" + "x" * 43},
                           {"Authorization": "Basic abc"}):  # fmt: skip
                answer = guarded.service.client.request(method, path, headers=header)
                assert answer.status_code == 401, (method, path)
                assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_scopes(guarded: Guarded, alphas: dict[str, str]) -> None:
    assert guarded.call("reader", "GET", f"/v1/plans/{alphas['plan']}").status_code == 200
    query = f"graph={alphas['graph']}&hardware={HARDWARE}&max_gpus="
    assert guarded.call("reader", "GET", f"/v1/curves?{query}2").status_code == 200
    refused = [
        guarded.call("reader", "POST", "/v1/graphs", content=canonical_json(mlp(21))),
        guarded.call("reader", "GET", f"/v1/curves?{query}3"),
        guarded.call("reader", "DELETE", f"/v1/plans/{alphas['plan']}"),
    ]
    assert [answer.status_code for answer in refused] == [403, 403, 403]
    assert refused[0].json()["scope"] == "submit"
    agent = f"/v1/agents/{alphas['agent']}"
    assert guarded.call("reader", "GET", agent).status_code == 200
    assert guarded.call("reader", "POST", "/v1/launches", json={}).status_code == 403
    for method, path, scope in (
        ("POST", "/v1/agents/tokens", "admin"),
        ("POST", f"{agent}/drain", "admin"),
        ("DELETE", agent, "admin"),
        ("POST", f"{agent}/heartbeat", "agent"),
    ):
        answer = guarded.call("submitter", method, path)
        assert (answer.status_code, answer.json()["scope"]) == (403, scope)


def test_rates(guarded: Guarded) -> None:
    statuses = [guarded.call("slow", "GET", "/v1/graphs").status_code for _ in range(12)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert guarded.call("a", "GET", "/v1/graphs").status_code == 200


def test_quotas_of_graphs_and_jobs(guarded: Guarded) -> None:
    for width in (201, 202, 203, 204, 205):
        last = guarded.call("b", "POST", "/v1/graphs", content=canonical_json(mlp(width)))
    assert last.status_code == 429
    assert last.json()["type"].endswith("quota")
    keys(guarded.folder, "limit", "beta", "max_graphs", "100")
    answer = guarded.call("b", "POST", "/v1/graphs", content=canonical_json(mlp(205)))
    assert answer.status_code == 201
    active = [f"/v1/jobs?state={state}" for state in ("queued", "running")]
    wait_until(
        lambda: not any(guarded.call("b", "GET", path).json()["items"] for path in active),
        "what beta asked before has ended",
    )
    answers: list[httpx.Response] = []

    def ask(gpus: int) -> None:
        body = {"graph": "shipped:llama-8b", "hardware": "dgx-h100", "max_gpus": gpus}
        answers.append(guarded.call("b", "POST", "/v1/curves", json=body))

    threads = [threading.Thread(target=ask, args=(1000 - n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [answer for answer in answers if answer.status_code == 202]
    full = [answer for answer in answers if answer.status_code == 429]
    assert (len(taken), len(full)) == (3, 3)
    assert all(answer.headers["Retry-After"] for answer in full)
    in_use = guarded.call("b", "DELETE", f"/v1/graphs/{taken[0].json()['question']['graph']}")
    assert in_use.status_code == 409
    for answer in taken:
        guarded.call("b", "DELETE", answer.headers["Location"])


def test_a_revoked_key_is_worthless(guarded: Guarded) -> None:
    key = json.loads(keys(guarded.folder, "create", "--json", "--tenant", "alpha"))["key"]
    guarded.keys["short"] = key
    assert guarded.call("short", "GET", "/v1/graphs").status_code == 200
    keys(guarded.folder, "revoke", key.split("_")[1])
    assert guarded.call("short", "GET", "/v1/graphs").status_code == 401
    listed = json.loads(keys(guarded.folder, "list", "--json"))["keys"]
    assert [k["id"] for k in listed if k["revoked_at"]] == [key.split("_")[1]]
    assert key.split("_", 2)[2] not in json.dumps(listed)


def test_the_secret_is_nowhere_in_the_folder(guarded: Guarded) -> None:
    secret = guarded.keys["a"].split("_", 2)[2].encode()
    for path in (guarded.folder / "data").rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes()
    assert secret not in guarded.service.log.read_bytes()


def test_elsewhere_than_on_loopback_keys_are_needed(tmp_path: Any) -> None:
    app = App(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0", data_dir=str(tmp_path / "d"))
    assert app.process.wait(30) == 2
    assert "listening on 0.0.0.0 needs keys, and there are none" in app.log.read_text()
    app.stop()


def test_audit_says_who_asked_what(guarded: Guarded, alphas: dict[str, str]) -> None:
    import sqlite3

    with sqlite3.connect(guarded.folder / "data" / "shardwise.sqlite") as connection:
        rows = connection.execute("SELECT tenant_id, key_id, action, target FROM audit").fetchall()
    key_id = guarded.keys["a"].split("_")[1]
    assert ("alpha", key_id, "plans.create", f"/v1/plans/{alphas['plan']}") in rows
    assert ("alpha", key_id, "graphs.create", f"/v1/graphs/{alphas['graph']}") in rows
