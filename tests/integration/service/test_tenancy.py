"""Another tenant's things are nothing: one test per route, made from the OpenAPI document.

A route that is added gets tests: a path parameter or a body that is not in the tables below
fails, saying so. Beta holds every id that alpha has, and must learn no more from it than from an
id that does not exist: same status, same text, same headers, and nothing of alpha's changes.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from sqlalchemy import select

from harness.page.launched import measurement
from harness.service.fake_agent import FakeAgent
from harness.service.service_harness import Service, wait_until
from harness.service.steps import HARDWARE, REFUSED, keys, mlp
from service.base.scopes import scope_of
from service.base.settings import Settings
from service.host.app import create_app
from service.host.backup import tables
from service.page.routes import router as page
from service.store.database import Database
from shardwise.graph import canonical_json, graph_id
from shardwise.hardware import hardware_document, load_hardware

OPEN = {"/healthz", "/readyz", "/metrics"}
"""Operation: no key is needed, and no tenant, id or name may appear in the answer."""

PATH_IDS = {
    "graph_id": ("graph",),
    "hardware_id": ("hardware",),
    "job_id": ("frontier", "curve", "plan", "pricing", "quote", "comparison", "plan_id"),
    "watch": ("watch",),
    "agent_id": ("agent",),
    "launch_id": ("launch",),
    "run_id": ("run",),
    "key_id": ("key",),
    "tenant": ("tenant",),
    "webhook_id": ("webhook",),
}
"""Which of alpha's ids a path parameter may hold; beta tries all of them, and some others."""

OTHERS = 2
"""How many ids of other things beta tries in `make test`; in `make test-all` it tries all."""

HOW_MANY = pytest.mark.parametrize(
    "others", [OTHERS, pytest.param(99, marks=pytest.mark.full)], ids=["some", "all"]
)

QUERY_IDS: dict[str, tuple[str, ...]] = {
    "graph": ("graph",),
    "hardware": ("hardware",),
    "cursor": (
        "graphs_cursor",
        "jobs_cursor",
        "hardware_cursor",
        "agents_cursor",
        "launches_cursor",
        "keys_cursor",
        "audit_cursor",
    ),
    "tenant": ("tenant",),
    "key": ("key",),
}
FIXED = {"max_gpus": "2", "graph": "shipped:vgg16", "hardware": HARDWARE}
"""What the other required parameters hold while one names alpha's."""

ASK = {"graph": "{graph}", "hardware": HARDWARE}
THEIR_HARDWARE = {"graph": "shipped:vgg16", "hardware": "{hardware}"}
BODIES: dict[str, tuple[Any, ...]] = {
    "/v1/frontiers": ({**ASK, "gpus": 1}, {**THEIR_HARDWARE, "gpus": 1}),
    "/v1/plans": ({**ASK, "gpus": 1}, {**THEIR_HARDWARE, "gpus": 1}),
    "/v1/pricings": (
        {**ASK, "gpus": 1, "configuration": "{}"},
        {**THEIR_HARDWARE, "gpus": 1, "configuration": "{}"},
    ),
    "/v1/curves": ({**ASK, "max_gpus": 2}, {**THEIR_HARDWARE, "max_gpus": 2}),
    "/v1/curves/bulk": (
        {"questions": [{**ASK, "max_gpus": 2}]},
        {"questions": [{**THEIR_HARDWARE, "max_gpus": 2}]},
    ),
    "/v1/quotes": ({"graph": "{graph}"},),
    "/v1/comparisons": ({**ASK, "gpus": 1}, {**THEIR_HARDWARE, "gpus": 1}),
    "/v1/watches": (
        {**ASK, "name": "mine", "max_gpus": 2},
        {**THEIR_HARDWARE, "name": "mine", "max_gpus": 2},
    ),
    "/v1/allocations": ({"gpus": 2, "jobs": [ASK]}, {"gpus": 2, "jobs": [THEIR_HARDWARE]}),
    "/v1/skypilot/policy": (
        {"task": "envs: {SHARDWISE_GRAPH: '{graph}'}"},
        {"task": "envs: {SHARDWISE_GRAPH: shipped:vgg16, SHARDWISE_HARDWARE: '{hardware}'}"},
    ),
}
"""Bodies that name what alpha has."""

BODIES |= {
    "/v1/launches": (
        {"plan_id": "{plan_id}"},
        {"kind": "measure", "operators": "{graph}"},
        {"kind": "measure", "agents": ["{agent}"]},
    ),
    "/v1/hardware/{hardware_id}/refits": ({"launches": ["{launch}"]},),
    **{
        f"/v1/agents/{{agent_id}}/{what}": ({},)
        for what in ("drain", "undrain", "heartbeat", "reports")
    },
}

BODIES["/v1/keys/{key_id}/rotate"] = ({},)
BODIES["/v1/webhooks/{webhook_id}/test"] = ({},)
for verb in ("accept", "reject"):
    BODIES[f"/v1/launches/{{launch_id}}/runs/{{run_id}}/{verb}"] = ({},)
NAMELESS = {"/v1/agents": 401, "/v1/agents/tokens": 201, "/v1/keys": 201, "/v1/webhooks": 422}
"""Bodies that name nothing of anybody's, and what beta is answered."""

UPLOADS = {"/v1/graphs": "graph_text", "/v1/hardware": "hardware_text"}
"""Bodies that are things themselves: new to beta, though alpha has them."""

OFFERS = (
    "InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Provider\n"
    "secret-instance,V100,1,2.5,here,me\n"
)


def _app() -> FastAPI:
    never_opened = Path(tempfile.gettempdir()) / "shardwise-routes-only.sqlite"
    return create_app(Settings(database_url=f"sqlite:///{never_opened}"))


def _routes() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method.upper(), operation)
        for path, operations in _app().openapi()["paths"].items()
        for method, operation in operations.items()
    ]


def _pages() -> list[tuple[str, str]]:
    """The web page's addresses, which the OpenAPI document leaves out."""
    routes = []
    for route in page.routes:
        if isinstance(route, APIRoute):
            routes += [(route.path, method) for method in sorted(route.methods)]
    assert len(routes) > 15
    return routes


ROUTES = _routes()
PAGES = _pages()


USED = re.compile(rb'"last_used_at":("[^"]*"|null)')
"""Changes whenever a key is used."""

ALREADY_ITS_OWN = {"/v1/audit": ("graph", "hardware")}
"""What beta has uploaded itself: it has the content's id, and so has the line that says so."""


class Two:
    """A service with two tenants; alpha has one of everything, all of it done."""

    def __init__(self, folder: Any) -> None:
        self.keys = {
            tenant: json.loads(
                keys(folder, "create", "--json", "--tenant", tenant, "--scope", "admin")
            )["key"]
            for tenant in ("alpha-corp", "beta-corp")
        }
        # A lease for all of the tests: an agent that is lost meanwhile is a change of alpha's.
        self.service = Service(
            folder, auth_cache_s="0", agent_lease_s="3600", webhook_allow_networks="127.0.0.0/8"
        )
        graph = mlp(28, name="alphas-secret-model")
        self.graph_text = canonical_json(graph)
        profile = {**hardware_document(load_hardware("l4")), "name": "alphas-secret-cluster"}
        self.hardware_text = json.dumps(profile).encode()
        self.ids = {"graph": graph_id(graph)}
        assert self.alpha("POST", "/v1/graphs", content=self.graph_text).status_code == 201
        answer = self.alpha("POST", "/v1/hardware", content=self.hardware_text)
        self.ids["hardware"] = answer.json()["id"]
        ask = {"graph": self.ids["graph"], "hardware": self.ids["hardware"]}
        for kind, body in (
            ("frontier", {**ask, "gpus": 1}),
            ("curve", {**ask, "max_gpus": 2}),
            ("plan", {**ask, "gpus": 1}),
            ("pricing", {**ask, "gpus": 1, "configuration": '{"train_batch_size": 8}'}),
            ("quote", {"graph": self.ids["graph"], "offers_csv": OFFERS, "max_instances": 1}),
            ("comparison", {**ask, "gpus": 1, "proposals": 20}),
        ):
            headers = {"Idempotency-Key": f"alphas-{kind}"}
            accepted = self.alpha("POST", f"/v1/{kind}s", json=body, headers=headers).json()
            self.ids[kind] = accepted["id"]
            job = wait_until(lambda accepted=accepted: self._ended(accepted["location"]), kind)
            assert job["state"] == "done", job
            if kind == "plan":
                self.ids["plan_id"] = job["result"]["id"]
        self.ids["watch"] = "hidden-watch"
        watch = {**ask, "name": self.ids["watch"], "max_gpus": 2}
        assert self.alpha("POST", "/v1/watches", json=watch).status_code == 201
        self.alpha("POST", "/v1/graphs", content=canonical_json(mlp(29)))
        other = json.dumps({**profile, "name": "alphas-other-cluster"}).encode()
        self.alpha("POST", "/v1/hardware", content=other)
        # Of what never happens here: a delivery would change what alpha sees.
        hook = {"url": "http://127.0.0.1:9999/alphas-path", "events": ["launch.ended"],
                "states": ["lost"]}  # fmt: skip
        self.ids["webhook"] = self.alpha("POST", "/v1/webhooks", json=hook).json()["id"]
        self._enrol_and_launch()
        self.ids["key"] = self.alpha("POST", "/v1/keys", json={"name": "alphas-key"}).json()["id"]
        self.ids["tenant"] = "alpha-corp"
        for name in ("graphs", "jobs", "hardware", "agents", "launches", "keys", "audit"):
            page = self.alpha("GET", f"/v1/{name}?limit=1").json()
            self.ids[f"{name}_cursor"] = page["next"]
        self._database = Database(f"sqlite:///{folder / 'data' / 'shardwise.sqlite'}")
        self._everything = self.everything()
        self.look()

    def _enrol_and_launch(self) -> None:
        """Two agents; a launch that has logged, one with a run that is held, one that waits."""
        headers = {"Authorization": f"Bearer {self.keys['alpha-corp']}"}
        agents = [
            FakeAgent(self.service.client, f"alphas-{n}", headers=headers, host="alphas-host")
            for n in range(2)
        ]
        body = {"kind": "measure", "agents": [agents[0].id], "hardware": "alphas-secret-cluster"}
        launch = self.alpha("POST", "/v1/launches", json=body)
        assert launch.status_code == 201, launch.text
        part = agents[0].must_claim()
        agents[0].report(
            agents[0].of(part, "log", rank=0, lines=["alphas-line"], first_line=1),
            agents[0].of(part, "state", state="done"),
        )
        body = {"plan_id": self.ids["plan_id"], "agents": [agents[1].id], "entry_point": "train"}
        ran = self.alpha("POST", "/v1/launches", json=body).json()["location"]
        part = agents[1].must_claim()
        agents[1].report(
            agents[1].of(part, "result", name="r", document=measurement(part["plan"], 1e-9)),
            agents[1].of(part, "state", state="done"),
        )
        self.ids["run"] = self.alpha("GET", ran).json()["runs"][0]["id"]
        self.alpha("POST", "/v1/launches", json={"kind": "measure", "agents": 9})
        self.ids |= {"agent": agents[0].id, "launch": launch.json()["id"]}

    def _ended(self, location: str) -> dict[str, Any] | None:
        job: dict[str, Any] = self.alpha("GET", location).json()
        return job if job["state"] in ("done", "failed", "cancelled") else None

    def alpha(self, method: str, path: str, **keywords: Any) -> httpx.Response:
        return self._call("alpha-corp", method, path, **keywords)

    def beta(self, method: str, path: str, **keywords: Any) -> httpx.Response:
        return self._call("beta-corp", method, path, **keywords)

    def _call(self, who: str, method: str, path: str, **keywords: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[who]}", **keywords.pop("headers", {})}
        return self.service.client.request(method, path, headers=headers, **keywords)

    @property
    def missing_ids(self) -> dict[str, str]:
        """Ids of the same form that do not exist."""
        return {
            name: value if name.endswith("_cursor") else f"{value[:-8]}00000000"
            for name, value in self.ids.items()
        }

    def everything(self) -> list[bytes]:
        """All that alpha can see, but what its own asking changes."""
        paths = [
            path
            for path, method, _ in ROUTES
            if method == "GET"
            and path not in (*OPEN, "/v1/audit")
            and not path.endswith(("/events", "/export"))
        ]
        seen = []
        for path in paths:
            for name in PATH_IDS.get(path.partition("{")[2].partition("}")[0], ("",)):
                if not path.startswith("/v1/curves") or "{" in path:
                    seen.append(self.alpha("GET", _at(path, self.ids.get(name, ""))).content)
        return [USED.sub(b"", text) for text in seen if b'"shardwise.' in text]

    def look(self) -> None:
        """Remembers alpha's rows as they are."""
        self._rows = self.rows()

    def require_unchanged(self, *, closely: bool = False) -> None:
        """Alpha's rows are as they were; closely: and all that alpha can see."""
        before = self._rows
        self.look()
        assert self._rows == before
        if closely:
            seen, self._everything = self._everything, self.everything()
            assert self._everything == seen

    def rows(self) -> dict[str, list[str]]:
        """What is stored of alpha, but what its own calls leave there."""
        found = {}
        with self._database.read() as session:
            for table in tables():
                if table.name in ("audit", "idempotency") or "tenant_id" not in table.c:
                    continue
                columns = [column for column in table.c if column.name != "last_used_at"]
                query = select(*columns).where(table.c.tenant_id == "alpha-corp")
                found[table.name] = sorted(repr(tuple(row)) for row in session.execute(query))
        return found

    def stop(self) -> None:
        self._database.close()
        self.service.stop()

    def ids_for(self, name: str, others: int) -> list[str]:
        """Names of the ids that a path parameter may hold, and of so many others."""
        mine = PATH_IDS[name]
        strange = [n for n in self.ids if n not in mine and not n.endswith("_cursor")]
        # Each parameter meets others, so that together they meet all.
        first = 3 * list(PATH_IDS).index(name) % len(strange)
        return [*mine, *(strange[first:] + strange[:first])[:others]]

    def reveals(self, text: str) -> list[str]:
        """Returns what of alpha's appears in a text."""
        secrets = [*self.ids.values(), "alphas-", "alpha-corp", "secret-instance"]
        return [secret for secret in secrets if secret in text]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    started = Two(tmp_path_factory.mktemp("tenancy"))
    yield started
    started.stop()


def _at(path: str, value: str) -> str:
    return re.sub(r"\{[^}]*\}", lambda _: value, path)


def _filled(value: Any, names: dict[str, str]) -> Any:
    text = json.dumps(value)
    for name, actual in names.items():
        text = text.replace("{" + name + "}", actual)
    return json.loads(text)


def _said(answer: httpx.Response, names: dict[str, str]) -> tuple[Any, ...]:
    """Returns what an answer reveals: all but the request's id, the date and the ids asked for."""
    text = answer.text.replace(answer.headers["x-request-id"], "REQUEST")
    for value in sorted(names.values(), key=len, reverse=True):
        text = text.replace(value, "ID")
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in ("date", "x-request-id", "content-length")
    }
    return answer.status_code, text, headers


def _parameters(operation: dict[str, Any], place: str) -> list[dict[str, Any]]:
    return [p for p in operation.get("parameters", []) if p["in"] == place]


@HOW_MANY
@pytest.mark.parametrize(
    ("path", "method", "operation"), ROUTES, ids=[f"{m} {p}" for p, m, _ in ROUTES]
)
def test_a_route_tells_nothing_of_another_tenant(
    two: Two, path: str, method: str, operation: dict[str, Any], others: int
) -> None:
    if path in OPEN:
        assert two.reveals(two.service.client.request(method, path).text) == []
        return
    tried = _by_path(two, path, method, operation, others)
    tried += _by_query(two, path, method, operation)
    if method == "POST":
        tried += _by_body(two, path)
    if method == "GET" and "{" not in path:
        answer = two.beta(method, path)
        own = {two.ids[name] for name in ALREADY_ITS_OWN.get(path, ())}
        assert set(two.reveals(answer.text)) <= own
        tried += 1
    assert tried, f"{method} {path} is not tested: say in this file what it takes"
    if method != "GET":
        two.require_unchanged(closely=others > OTHERS)
    assert two.service.client.request(method, _at(path, two.ids["graph"])).status_code == 401


def _same(two: Two, method: str, paths: tuple[str, str], *more: dict[str, Any]) -> httpx.Response:
    """Returns beta's answer on alpha's id, after comparing it with that on a missing one."""
    theirs, none = (
        two.beta(method, path, **keywords)
        for path, keywords in zip(paths, more or ({}, {}), strict=True)
    )
    assert _said(theirs, two.ids) == _said(none, two.missing_ids)
    return theirs


def _none(path: str, method: str) -> int:
    """What an administrator is answered: an operator's calls are refused, whatever they name."""
    return 403 if scope_of(method.lower(), path) == "operator" else 404


def _by_path(two: Two, path: str, method: str, operation: dict[str, Any], others: int) -> int:
    names = [p["name"] for p in _parameters(operation, "path")]
    for name in names:
        assert name in PATH_IDS, f"{name}: say in PATH_IDS what of alpha's it may be"
        for which in two.ids_for(name, others):
            paths = _at(path, two.ids[which]), _at(path, two.missing_ids[which])
            assert _same(two, method, paths).status_code == _none(path, method)
    return len(names)


def _by_query(two: Two, path: str, method: str, operation: dict[str, Any]) -> int:
    given = _parameters(operation, "query")
    required = {p["name"]: FIXED[p["name"]] for p in given if p["required"]}
    tried = 0
    for name in (p["name"] for p in given if p["name"] in QUERY_IDS):
        for which in QUERY_IDS[name]:
            mine = {"params": {**required, name: two.ids[which]}}
            missing_ids = {"params": {**required, name: two.missing_ids[which]}}
            answer = _same(two, method, (path, path), mine, missing_ids)
            own = {two.ids[name] for name in ALREADY_ITS_OWN.get(path, ())}
            assert not set(two.reveals(answer.text)) - {two.ids[which]} - own
            tried += 1
    return tried


def _by_body(two: Two, path: str) -> int:
    if path in UPLOADS:
        content = getattr(two, UPLOADS[path])
        key = {"Idempotency-Key": f"alphas-{path}"}
        assert two.alpha("POST", path, content=content, headers=key).status_code == 200
        two.look()
        answer = two.beta("POST", path, content=content, headers=key)
        assert answer.status_code == 201, "alpha's upload shows in the answer to beta's"
        assert "idempotency-replayed" not in answer.headers
        assert two.beta("DELETE", answer.headers["location"]).status_code == 204
        return 1
    if scope_of("post", path) == "operator":
        answer = two.beta("POST", path, json={"id": two.ids["tenant"]})
        assert answer.status_code == 403 and two.reveals(answer.text) == []
        return 1
    if path in NAMELESS:
        answer = two.beta("POST", path, json={})
        assert answer.status_code == NAMELESS[path]
        assert two.reveals(answer.text) == []
        return 1
    assert path in BODIES, f"{path}: say in BODIES how its body names what alpha has"
    for body in BODIES[path]:
        kind = path.removeprefix("/v1/").removesuffix("s")
        headers = {"Idempotency-Key": f"alphas-{kind}"}
        mine = {"json": _filled(body, two.ids), "headers": headers}
        missing_ids = {"json": _filled(body, two.missing_ids), "headers": headers}
        expected = REFUSED.get(path, _none(path, "POST"))
        assert _same(two, "POST", (path, path), mine, missing_ids).status_code == expected
    return len(BODIES[path])


@HOW_MANY
@pytest.mark.parametrize(("path", "method"), PAGES, ids=[f"{m} {p}" for p, m in PAGES])
def test_a_page_tells_nothing_of_another_tenant(
    two: Two, path: str, method: str, others: int
) -> None:
    name = path.partition("{")[2].partition("}")[0].partition(":")[0]
    assert name in ("", "name", *PATH_IDS), f"{name}: say in PATH_IDS what of alpha's it may be"
    headers = {"Cookie": f"shardwise_key={two.keys['beta-corp']}", "Origin": two.service.url}

    def visit(value: str) -> httpx.Response:
        # What else a form may name, the calls behind the pages are tested with above.
        form = {"data": {"point": "0"}} if method == "POST" and value else {}
        return two.service.client.request(method, _at(path, value), headers=headers, **form)

    for which in two.ids_for(name, others) if name in PATH_IDS else [""]:
        theirs = two.ids.get(which, "")
        seen, none = visit(theirs), visit(two.missing_ids[which] if which else "")
        assert seen.status_code == none.status_code
        assert seen.status_code in (303, 400, 403, 404, 405, 422) or not which
        hidden = [text for text in two.reveals(seen.text) if text != theirs]
        if path == "/audit":  # what beta has uploaded too has the same content id
            hidden = [text for text in hidden if not text.startswith("sha256:")]
        assert hidden == []
    if method == "POST":
        two.require_unchanged(closely=others > OTHERS)


def test_alphas_ids_are_alive(two: Two) -> None:
    """Else every 404 above would mean nothing."""
    assert len(two.everything()) >= 15
    assert sum(map(len, two.rows().values())) >= 15
    two.require_unchanged(closely=True)
    for kind in ("frontier", "curve", "plan", "pricing", "quote"):
        assert two.alpha("GET", f"/v1/{kind}s/{two.ids[kind]}").json()["state"] == "done"
    assert two.alpha("GET", f"/v1/plans/{two.ids['plan_id']}").status_code == 200


def test_an_answer_of_alphas_does_not_hasten_betas(two: Two) -> None:
    """The same question of another tenant is a question of its own, computed for it."""
    graph = two.beta("POST", "/v1/graphs", content=two.graph_text).json()["id"]
    assert graph == two.ids["graph"]
    profile = two.beta("POST", "/v1/hardware", content=two.hardware_text).json()["id"]
    body = {"graph": graph, "hardware": profile, "gpus": 1}
    answer = two.beta("POST", "/v1/plans", json=body)
    assert answer.status_code == 202
    assert answer.json()["id"] != two.ids["plan"]
    assert (
        answer.json()["question"]
        == two.alpha("GET", f"/v1/plans/{two.ids['plan']}").json()["question"]
    )
