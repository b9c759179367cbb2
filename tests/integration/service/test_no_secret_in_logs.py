"""A whole run at debug level; then every secret of it is searched for wherever it must not be.

PostgreSQL and Valkey here take any password, so that the URLs can have some.
"""

from __future__ import annotations

import gzip
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from harness.service.fake_agent import FakeAgent
from harness.service.service_harness import (
    App,
    Service,
    command_of,
    descendants,
    free_port,
    new_database,
    wait_until,
)
from service.base.archive import read_files
from service.base.settings import load_settings
from service.host.backup import write_backup
from service.store.database import Database
from service.store.tables import Audit, Job

LOADED_S = 240.0
LONG = {
    "graph": "shipped:gpt2", "hardware": "dgx-h100", "max_gpus": 10, "options": {"overlap": False}
}  # fmt: skip


def with_password(url: str, user: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{password}@{rest.rpartition('@')[2]}"


@dataclass
class Run:
    """What a run left: its secrets by name, and the places where none may be."""

    secrets: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def new(self, name: str) -> str:
        self.secrets[name] = f"{name}-{secrets.token_hex(12)}"
        return self.secrets[name]

    def keep(self, place: str, text: str) -> None:
        self.places[place] = self.places.get(place, "") + text

    def keep_problem(self, answer: httpx.Response) -> None:
        assert answer.status_code >= 400, answer.text
        self.keep("problem documents", f"{answer.headers}{answer.text}\n")


class Commands(threading.Thread):
    """Collects the command lines of our processes while they come and go."""

    def __init__(self, apps: list[App]) -> None:
        super().__init__(daemon=True)
        self.apps = apps
        self.seen: set[str] = set()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            for root in [app.pid for app in self.apps if app.process.poll() is None]:
                self.seen.update(command_of(pid) for pid in (root, *descendants(root)))


@pytest.fixture(scope="module")
def run(
    postgres_url: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("secrets")
    done = Run()
    with pytest.MonkeyPatch.context() as patch, new_database(postgres_url) as url:
        patch.setattr(App, "warm", False)  # command lines are those that users see
        patch.setenv("OTEL_TRACES_EXPORTER", "console")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        files = {
            "database_url": with_password(url, "postgres", done.new("database-password")),
            "redis_url": with_password(redis_url, "default", done.new("redis-password")),
        }
        for name, content in files.items():
            (folder / name).write_text(content + "\n")
        variables = {f"{name}_file": str(folder / name) for name in files}
        variables |= {"queue": f"secrets-{secrets.token_hex(4)}", "log_level": "debug"}
        _carry_out(done, folder, variables)
        yield done


def _carry_out(done: Run, folder: Path, variables: dict[str, str]) -> None:
    apps: list[App] = []
    commands = Commands(apps)
    commands.start()

    def app(name: str, *arguments: str, **more: str) -> App:
        apps.append(App(folder, name, *arguments, **{**variables, **more}))
        return apps[-1]

    try:
        _carry_out_with(done, folder, variables, app, commands)
    finally:
        for one in reversed(apps):
            one.kill() if one.process.poll() is None else one.stop()
        commands.done.set()
        commands.join()
    done.keep("logs", "".join(one.log.read_text() for one in apps))
    done.keep("command lines", "\n".join(commands.seen))


def _carry_out_with(
    done: Run, folder: Path, variables: dict[str, str], app: Any, commands: Commands
) -> None:
    assert app("migrate").process.wait(LOADED_S) == 0
    key = app("keys", "create", "--tenant", "acme", "--scope", "admin").line().strip()
    done.secrets["key"] = key
    service = Service(folder, **variables)
    commands.apps.append(service)
    app("worker", log_format="text")
    _ask(done, service, key, commands)
    _misuse(done, service, key)
    _administer(done, service, app, key)
    done.keep("/metrics", service.client.get("/metrics").text)
    done.keep("/readyz", service.client.get("/readyz").text)
    database = _database(variables)
    with database.read() as session:
        rows = session.scalars(select(Audit)).all()
        done.keep("audit", "\n".join(repr(vars(row)) for row in rows))
    write_backup(database, folder / "store.backup")
    database.close()
    done.keep("backup", gzip.decompress((folder / "store.backup").read_bytes()).decode())
    _bad_urls(done, app)
    for one in reversed(commands.apps):
        one.stop()


def _database(variables: dict[str, str]) -> Database:
    environment = {f"SHARDWISE_{name.upper()}": value for name, value in variables.items()}
    return Database(load_settings({}, environment).database)


def _ask(done: Run, service: Service, key: str, commands: Commands) -> None:
    """What a user and an agent do: tokens, an agent's key, a solve, an upload, signing in."""
    mine = {"Authorization": f"Bearer {key}"}
    long = service.client.post("/v1/curves", json=LONG, headers=mine).headers["Location"]
    answer = service.client.post("/v1/agents/tokens", json={"name": "a"}, headers=mine)
    done.secrets["enrolment token"] = token = str(answer.json()["token"])
    agent = FakeAgent(service.client, token=token)
    done.secrets["agent's key"] = agent.key
    agent.beat()
    for again in (token, "swe_" + secrets.token_urlsafe(32)):
        done.secrets[f"token {again[:8]}"] = again
        done.keep_problem(service.client.post("/v1/agents", json={"token": again}))
    database = _database({"database_url_file": str(service.log.parent / "database_url")})

    def lease_token() -> str | None:
        with database.read() as session:
            return session.scalar(select(Job.lease_token).where(Job.lease_token.is_not(None)))

    done.secrets["lease token"] = str(wait_until(lease_token, "a solve has begun", LOADED_S))
    database.close()
    signed = service.client.post("/sign-in", data={"key": key})
    assert signed.status_code in (302, 303), signed.text
    service.client.get("/jobs")
    service.client.cookies.clear()
    onnx = {"Content-Type": "application/onnx", **mine}

    def upload_is_seen() -> bool:
        done.keep_problem(service.client.post("/v1/graphs?batch=2", content=b"x", headers=onnx))
        return any("ingest_child" in line for line in commands.seen.copy())

    wait_until(upload_is_seen, "the command line of an upload's reader", LOADED_S)
    job = service.ended(long, LOADED_S, headers=mine)
    assert job["state"] == "done", job


def _administer(done: Run, service: Service, app: Any, key: str) -> None:
    """Keys that are made and rotated by HTTP, in the page and on the shell; the page's cookie."""
    mine = {"Authorization": f"Bearer {key}"}
    for name in ("made", "rotated"):
        secret = done.secrets.get("made by http", "")
        path = "/v1/keys" if name == "made" else f"/v1/keys/{secret.split('_')[1]}/rotate"
        headers = {**mine, "Idempotency-Key": f"once-{name}"}
        answer = service.client.post(path, json={}, headers=headers)
        assert answer.status_code == 201, answer.text
        done.secrets[f"{name} by http"] = answer.json()["key"]
    form = {"Cookie": f"shardwise_key={key}", "Origin": service.url}
    page = service.client.post("/keys", data={"scopes": "read"}, headers=form)
    assert page.status_code == 201, page.text
    done.secrets["made in the page"] = page.text.partition('id="key">')[2].partition("<")[0]
    operator = app("keys", "create", "--tenant", "ops", "--scope", "operator").line().strip()
    done.secrets["operator's key"] = operator
    rotated = app("keys", "rotate", operator.split("_")[1]).line().strip()
    done.secrets["rotated on the shell"] = rotated
    ruling = {"Authorization": f"Bearer {rotated}"}
    export = service.client.get("/v1/tenants/acme/export", headers=ruling)
    files = read_files(export.content)
    done.keep("archive", "".join(content.decode("utf-8", "replace") for content in files.values()))
    done.keep("audit over http", service.client.get("/v1/audit?limit=200", headers=mine).text)
    done.keep_problem(service.client.delete(f"/v1/tenants/{key}", headers=ruling))
    done.keep_problem(service.client.get("/v1/keys/" + rotated, headers=mine))
    done.keep_problem(service.client.get(f"/v1/audit?since={key}", headers=mine))


def _misuse(done: Run, service: Service, key: str) -> None:
    """Keys that are wrong, and right ones in the wrong places."""
    client, mine = service.client, {"Authorization": f"Bearer {key}"}
    wrong = f"sw_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}"
    done.secrets["wrong key"] = wrong
    for value in (
        f"Bearer {wrong}",
        f"Bearer {done.new('plain')}",
        f"Basic {done.new('basic')}",
        f"bearer{key}",
        key,
    ):
        done.keep_problem(client.post("/v1/plans", headers={"Authorization": value}))
    for body in ({"graph": key}, {key: 1}, {"graph": "shipped:vgg16", "hardware": key, "gpus": 1}):
        done.keep_problem(client.post("/v1/frontiers", json=body, headers=mine))
    done.keep_problem(client.post("/v1/frontiers", content=f"{{{key}", headers=mine))
    done.keep_problem(client.get(f"/v1/graphs/{key}", headers=mine))
    done.keep_problem(client.get(f"/{key}"))
    done.keep_problem(client.get("/v1/curves", params={"access_token": key}, headers=mine))
    done.keep_problem(client.get("/v1/jobs", params={"state": key}, headers=mine))
    done.keep_problem(client.get("/v1/curves", params={key: "1"}, headers=mine))
    done.keep_problem(client.post("/sign-in", data={"key": wrong}))
    # Stored in the audit: a request that succeeds, with its whole target and request id.
    asked = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": 1}
    path = f"/v1/frontiers?key={key}"
    answer = client.post(path, json=asked, headers={**mine, "X-Request-Id": key})
    assert answer.status_code in (202, 422)
    client.post(f"/v1/agents/tokens?key={key}", headers=mine)


def _bad_urls(done: Run, app: Any) -> None:
    """Services that cannot start for what their database's URL says."""
    password = done.new("bad-url-password")
    for url in (
        password,
        f"postgresql://user:{password}@127.0.0.1:{free_port()}/none",
        f"postgresql://user:{password}@127.0.0.1:port/none",
        f"postgresql://user:/{password}@127.0.0.1/none",
        f"postgresql:user:{password}",
        f"sqlite://user:{password}@there/x",
    ):
        for name in ("migrate", "worker"):
            other = app(name, database_url=url, database_url_file="")
            assert other.process.wait(LOADED_S) in (2, 3), other.log.read_text()
    for url in (f"redis://default:{password}@127.0.0.1:port/0", password):
        other = app("worker", redis_url=url, redis_url_file="")
        assert other.process.wait(LOADED_S) in (2, 3), other.log.read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    "place",
    [
        "logs",
        "problem documents",
        "/metrics",
        "/readyz",
        "audit",
        "audit over http",
        "archive",
        "backup",
        "command lines",
    ],
)
def test_no_secret_is_in(run: Run, place: str) -> None:
    text = run.places[place]
    assert text, "nothing was collected"
    leaks = {name: _around(text, secret) for name, secret in run.secrets.items() if secret in text}
    assert not leaks


@pytest.mark.full
def test_the_run_was_looked_at_closely(run: Run) -> None:
    """Debug lines, both formats, the children's command lines: else the search proves little."""
    assert '"level": "debug"' in run.places["logs"]
    assert "POST /v1/curves" in run.places["logs"]
    assert "solve curve" in run.places["logs"]
    for name in ("worker.child", "service.questions.ingest_child", " serve ", " keys create "):
        assert name in run.places["command lines"]
    assert len(run.secrets) >= 11


def _around(text: str, secret: str) -> str:
    at = text.index(secret)
    return text[max(0, at - 200) : at + len(secret) + 40]
