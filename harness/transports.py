"""Every way by which a question reaches the library, in one process and without a search.

At the end of each way stands a function of the library. `Ear` puts itself in place of all of them:
the first that is called raises `Heard` with its arguments. Between a client and a worker is the
service as it answers, with a database of its own; nothing takes its jobs but `worked`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from service.base.settings import Settings
from service.edge.context import RequestContext
from service.host.app import create_app
from service.page.elsewhere import elsewhere, file_of_question
from service.page.views.job_rows import form_address
from service.questions.question import answer
from service.store.database import Database
from service.store.graphs import graph_content
from service.store.jobs import find_job, job_document
from service.store.keys import local_principal
from service.store.question_blobs import whole_question
from service.store.schema import migrate
from shardwise.cli.main import cli
from shardwise.client import AsyncClient, Client
from shardwise.cost.options import quiet
from shardwise.documents.questions import COLLECTIONS
from shardwise.graph import graph_from_json

SERVER = "http://127.0.0.1"

ENDS: tuple[tuple[str, str, str], ...] = (
    ("frontier", "shardwise.answers", "frontier"),
    ("curve", "shardwise.answers", "curve"),
    ("curve", "service.questions.curves", "curve_question"),
    ("plan", "shardwise.solve", "solve"),
    ("plan", "service.questions.question", "solve"),
    ("plan", "shardwise.mcp.local", "solve"),
    ("plan", "shardwise.notebook", "solve"),
    ("quote", "shardwise.answers", "quote"),
    ("pricing", "shardwise.trainers.price", "price_configuration"),
    ("pricing", "service.questions.trainers", "price_configuration"),
    ("pricing", "shardwise.mcp.local", "price_configuration"),
    ("compare", "shardwise.peers", "compare"),
    ("compare", "service.questions.comparisons", "compare"),
    ("compare", "shardwise.notebook", "compare_systems"),
)
"""The functions that search, by the name of their answer, wherever they are called from."""

READERS = (
    ("service.questions.trainers", "configuration_of"),
    ("shardwise.mcp.local", "configuration_of"),
)
"""Where a configuration is read. Its text is the question: it is heard as it is."""


class Heard(Exception):
    """What a function of the library was asked: the name of the answer, arguments by name."""

    def __init__(self, kind: str, arguments: dict[str, Any]) -> None:
        super().__init__(kind)
        self.kind = kind
        self.arguments = arguments


class Text(str):
    """A configuration that is not read."""

    stages = 1


class Posted(Exception):
    """A question reached the service, which made this job for it or had it."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Puts what raises `Heard` in place of all functions that search."""
    with pytest.MonkeyPatch.context() as patch:
        searching = [(*end, getattr(import_module(end[1]), end[2])) for end in ENDS]
        for kind, module, name, original in searching:
            patch.setattr(f"{module}.{name}", functools.partial(_hear, kind, original))
        for module, name in READERS:
            patch.setattr(f"{module}.{name}", lambda text, gpus, file: Text(text))
        patch.setattr(
            "shardwise.trainers.read.read_configuration",
            lambda path, gpus: Text(Path(path).read_text("utf-8")),
        )
        yield


@contextlib.contextmanager
def answering(answer: Any) -> Iterator[None]:
    """Puts what returns an answer, or raises an error, in place of all functions that search."""

    def answer_all(*arguments: Any, **named: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.MonkeyPatch.context() as patch:
        # A module that is imported later would keep what is put here.
        for _, module, _ in ENDS:
            import_module(module)
        for _, module, name in ENDS:
            patch.setattr(f"{module}.{name}", answer_all)
        patch.setattr("shardwise.trainers.read.read_configuration", lambda path, gpus: Text())
        yield


def _hear(kind: str, original: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    bound = inspect.signature(original).bind(*arguments, **named)
    bound.apply_defaults()
    raise Heard(kind, dict(bound.arguments))


def heard_of(call: Callable[[], Any]) -> Heard:
    """Returns what a function of the library hears when this is called."""
    try:
        call()
    except Heard as heard:
        return heard
    raise AssertionError("no function that searches was called")


def posted_by(call: Callable[[], Any]) -> str:
    """Returns the job of the question that this call sends to the service."""
    try:
        call()
    except Posted as posted:
        return posted.job_id
    raise AssertionError("no question was sent")


class _Wire(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Carries requests of either client to a service in this process; a job stops the client."""

    def __init__(self, client: TestClient) -> None:
        self._client = client

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._carry(request, request.read())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self._carry(request, await request.aread())

    def _carry(self, request: httpx.Request, content: bytes) -> httpx.Response:
        answer = self._client.request(
            request.method, str(request.url), content=content, headers=dict(request.headers)
        )
        if answer.status_code == 202:
            raise Posted(answer.json()["id"])
        headers = {"Content-Type": answer.headers.get("content-type", "")}
        return httpx.Response(answer.status_code, content=answer.content, headers=headers)


class InOneProcess:
    """The service as it answers, with both clients and the page's texts, in this process."""

    def __init__(self, folder: Path) -> None:
        self.database = Database(f"sqlite:///{folder / 'one.sqlite'}")
        migrate(self.database)
        unbounded = {"anonymous_rate_per_s": 0.0, "max_queued": 10**9}
        self.app = create_app(Settings(data_dir=str(folder), **unbounded), self.database)  # type: ignore[arg-type]
        self.state = self.app.state.shardwise
        self.state.doorbell.ring = lambda job_ids: True
        self._http = TestClient(self.app, base_url=SERVER)
        self.wire = _Wire(self._http)

    def __enter__(self) -> InOneProcess:
        self._http.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._http.__exit__(*error)

    @property
    def client(self) -> Callable[..., Client]:
        """Makes blocking clients of this service."""
        return functools.partial(Client, transport=self.wire)

    @property
    def async_client(self) -> Callable[..., AsyncClient]:
        """Makes asynchronous clients of this service."""
        return functools.partial(AsyncClient, transport=self.wire)

    def post(self, kind: str, body: Mapping[str, Any] | bytes) -> str:
        """Returns the job of a question's body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self._http.post(
            f"/v1/{COLLECTIONS[kind]}",
            content=content,
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def worked(self, job_id: str) -> Heard:
        """Returns what the library hears from the worker that has this job."""
        with self.database.read() as session:
            job = find_job(session, "local", job_id)
            content = graph_content(session, job.graph_id)
            question = whole_question(session, job)
        assert content is not None
        return heard_of(lambda: answer(question, graph_from_json(content), quiet))

    def difference(self, one: str, other: str) -> str:
        """Returns how the questions of two jobs differ, for a test that fails."""
        with self.database.read() as session:
            asked, again = (
                whole_question(session, find_job(session, "local", j)) for j in (one, other)
            )
        names = sorted(asked.keys() | again.keys())
        unlike = [name for name in names if asked.get(name) != again.get(name)]
        return ", ".join(f"{name}: {asked.get(name)} is not {again.get(name)}" for name in unlike)

    def form(self, job_id: str, **typed: str) -> str:
        """Returns the job of the page's form, filled in with a job's question and sent as it is but
        for what is `typed`."""
        with self.database.read() as session:
            document = job_document(find_job(session, "local", job_id))
        form = _Form()
        form.feed(self._http.get(form_address(document)).text)
        fields = {**form.sent(), **{name: [text] for name, text in typed.items()}}
        headers = {"Origin": SERVER}
        sent = self._http.post("/ask", data=fields, headers=headers, follow_redirects=False)
        assert sent.status_code == 303, sent.text
        return sent.headers["Location"].rpartition("/")[2]

    def texts(self, job_id: str, folder: Path) -> dict[str, str | None]:
        """Returns what an answer's page shows to copy, with the files that it needs."""
        with self.database.read() as session:
            context = RequestContext(self.state, session, local_principal(session), "request")
            document = elsewhere(context, job_id, SERVER).document
            for name in document["files"]:
                content = file_of_question(context, job_id, name).content
                assert content is not None
                (folder / name).write_bytes(content)
        return {name: document[name] for name in ("command", "python", "curl")}


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Works in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def command(words: list[str]) -> Any:
    """Runs a command in this process."""
    return cli.main(words, prog_name="shardwise", standalone_mode=False)


def words_of(text: str) -> list[str]:
    """Returns the words of a command that the page shows, without the program's name."""
    return shlex.split(text.replace("\\\n", " "))[1:]


UNSENT = ("file", "radio", "checkbox")
"""Inputs that send nothing, unless they are checked."""


class _Form(HTMLParser):
    """What a browser without scripts sends of the form that asks, submitted as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._fields: list[tuple[str, str]] = []
        self._select = ""
        self._shown: list[str] = []
        self._area: str | None = None
        self._inside = False
        self._asleep = 0

    def sent(self) -> dict[str, list[str]]:
        """Returns the values of every field by its name."""
        fields: dict[str, list[str]] = {}
        for name, value in self._fields:
            fields.setdefault(name, []).append(value)
        return fields

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._inside = has.get("action") == "/ask"
        self._asleep += tag == "template"
        if not self._inside or self._asleep or ("name" not in has and tag != "option"):
            return
        if tag == "select":
            self._select, self._shown = has["name"], []
        elif tag == "option":
            if not self._shown or "selected" in has:
                self._shown = [has.get("value", "")]
        elif tag == "textarea":
            self._area = has["name"]
            self._fields.append((self._area, ""))
        elif tag == "input" and (has.get("type") not in UNSENT or "checked" in has):
            self._fields.append((has["name"], has.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            name, before = self._fields[-1]
            self._fields[-1] = (name, before + data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "select" and self._inside and self._shown:
            self._fields.append((self._select, self._shown[0]))
        elif tag == "textarea":
            self._area = None
        elif tag == "form":
            self._inside = False
        self._asleep -= tag == "template"
