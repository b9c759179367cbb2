"""The client against scripted services: what is sent again and what is not, errors, streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from harness.stored import stored
from shardwise.answers import Infeasible, Options
from shardwise.client import (
    AsyncClient,
    Client,
    Denied,
    JobCancelled,
    JobFailed,
    JobRefused,
    Missing,
    Refused,
    ServiceDefect,
    TooMany,
    Unreachable,
)
from shardwise.cost.options import Progress
from shardwise.documents import Frontier
from shardwise.errors import BadInput, Cancelled

ROOT = Path(__file__).parents[3]
SERVER = "http://service.example"
Handler = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are noted instead of made."""
    pauses: list[float] = []
    monkeypatch.setattr("shardwise.client.blocking.client.time.sleep", pauses.append)
    return pauses


def client(handler: Handler, **keywords: Any) -> Client:
    return Client(SERVER, transport=httpx.MockTransport(handler), **keywords)


def problem(status: int, slug: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
    document = {"type": f"urn:shardwise:problem:{slug}", "title": "t", "status": status,
                "detail": f"{slug} it is", "request_id": "r", **more}  # fmt: skip
    head = {"Content-Type": "application/problem+json", **(headers or {})}
    return httpx.Response(status, content=json.dumps(document), headers=head)


def job(state: str, **more: Any) -> dict[str, Any]:
    return {
        "schema": "shardwise.job/1", "id": "frontier_1", "kind": "frontier", "state": state,
        "stage": "costs", "progress": 0.5, "error": None, "request_id": "other",
        "location": "/v1/frontiers/frontier_1", **more,
    }  # fmt: skip


FRONTIER = stored("frontier-mlp")
ANSWER = json.loads(msgspec.json.encode(FRONTIER))


class Scripted:
    """A service that computes one frontier: its events, and the states that looks see."""

    def __init__(self, events: list[Any] | None, looks: list[dict[str, Any]]) -> None:
        self.events = events
        self.looks = iter(looks)
        self.seen: list[str] = []
        self.mine = False

    def __call__(self, request: Any) -> Any:
        self.seen.append(f"{request.method} {request.url.path}")
        if request.method == "POST":
            made_by = request.headers["x-request-id"] if self.mine else "other"
            return httpx.Response(202, json=job("queued", request_id=made_by))
        if request.method == "DELETE":
            return httpx.Response(200, json=job("running", cancel_requested=True))
        if request.url.path.endswith("/events"):
            if self.events is None:
                return problem(429, "too-many-watchers", {"Retry-After": "5"})
            return httpx.Response(200, stream=Events(self.events))
        return httpx.Response(200, json=next(self.looks))


class Events(httpx.SyncByteStream, httpx.AsyncByteStream):  # type: ignore[misc, name-defined]
    """Lines of a stream; an exception among them is raised."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, BaseException):
                raise part
            name = part["state"] if part["state"] in ("done", "failed") else "progress"
            yield f"id: 1\nevent: {name}\ndata: {json.dumps(part)}\n\n".encode()

    async def __aiter__(self) -> Any:
        for part in self:
            yield part


def ask(scripted: Scripted, progress: Progress | None = None, **keywords: Any) -> dict[str, Any]:
    with client(scripted) as opened:
        return opened.frontier("g", "h", 1, progress=progress, **keywords)


def test_what_is_lost_is_sent_again_as_the_same_request(slept: list[float]) -> None:
    keys: list[str] = []

    def handler(request: Any) -> Any:
        keys.append(request.headers["idempotency-key"])
        if len(keys) < 3:
            raise httpx.ReadError("reset")
        return httpx.Response(201, json={"id": "sha256:1"})

    with client(handler) as opened:
        assert opened.upload_graph({"schema": "x"})["id"] == "sha256:1"
        opened.upload_graph({"schema": "x"})
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1, "a repeat has the key of the first"
    assert keys[3] != keys[0], "another call has a key of its own"
    assert 0.1 <= slept[0] <= 0.2 <= slept[1] <= 0.4


def test_it_gives_up_after_its_retries(slept: list[float]) -> None:
    def handler(request: Any) -> Any:
        raise httpx.ConnectError("[Errno 111] Connection refused")

    with client(handler, retries=2) as opened, pytest.raises(Unreachable) as caught:
        opened.graph("sha256:1")
    assert str(caught.value) == f"{SERVER}: connection refused"
    assert caught.value.exit_code == 3
    assert len(slept) == 2


@pytest.mark.parametrize(
    ("status", "headers", "tries", "pause"),
    [(503, {}, 2, 0.2), (502, {}, 2, 0.2), (429, {"Retry-After": "3"}, 2, 3.0),
     (503, {"Retry-After": "2"}, 2, 2.0), (429, {"Retry-After": "3000"}, 1, 0.0),
     (429, {}, 1, 0.0), (500, {}, 1, 0.0), (422, {}, 1, 0.0), (409, {}, 1, 0.0)],
)  # fmt: skip
def test_only_what_may_help_is_sent_again(
    slept: list[float], status: int, headers: dict[str, str], tries: int, pause: float
) -> None:
    asked = []

    def handler(request: Any) -> Any:
        asked.append(request)
        if len(asked) == 1:
            return problem(status, "unavailable", headers)
        return httpx.Response(200, json={"items": [], "next": None})

    with client(handler) as opened:
        if tries == 1:
            with pytest.raises((TooMany, Refused, ServiceDefect)):
                list(opened.graphs())
        else:
            assert list(opened.graphs()) == []
    assert len(asked) == tries
    assert sum(slept) <= pause
    assert sum(slept) >= pause / 2


def test_a_delete_whose_answer_was_lost_is_done() -> None:
    answers = iter([httpx.ReadError("reset"), problem(404, "not-found"), problem(404, "not-found")])

    def handler(request: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with client(handler) as opened:
        opened.delete_graph("sha256:1")
        with pytest.raises(Missing):
            opened.delete_graph("sha256:1")


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (problem(401, "unauthenticated"), Denied, 2),
        (problem(403, "forbidden"), Denied, 2),
        (problem(404, "not-found"), Missing, 1),
        (problem(409, "in-use"), Refused, 2),
        (problem(413, "too-large"), Refused, 2),
        (problem(422, "invalid", field="gpus", expected="1"), Refused, 2),
        (problem(429, "quota"), TooMany, 3),
        (problem(500, "defect"), ServiceDefect, 3),
        (httpx.Response(404, text="<html>"), Unreachable, 3),
        (httpx.Response(200, text="<html>"), Unreachable, 3),
        (httpx.Response(301, headers={"Location": "/x"}), Unreachable, 3),
    ],
)
def test_problems_are_typed_errors(answer: Any, kind: type, code: int) -> None:
    with client(lambda request: answer) as opened, pytest.raises(kind) as caught:
        opened.graph("sha256:1")
    assert caught.value.exit_code == code  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)
    if kind is Refused:
        assert isinstance(caught.value, BadInput)
        assert caught.value.document["status"] == answer.status_code
    if answer.status_code == 422:
        assert caught.value.field == "gpus"  # type: ignore[attr-defined]
        assert str(caught.value) == "invalid it is"


def test_a_retry_after_that_is_too_long_is_reported() -> None:
    answer = problem(429, "rate-limited", {"Retry-After": "3000"})
    with client(lambda request: answer) as opened, pytest.raises(TooMany) as caught:
        opened.graph("sha256:1")
    assert caught.value.retry_after_s == 3000.0
    assert caught.value.slug == "rate-limited"


def test_a_stream_is_followed_to_the_answer() -> None:
    events = [job("running", progress=0.25), job("running", progress=0.75), job("done")]
    scripted = Scripted(events, [job("queued"), job("done", result=ANSWER)])
    heard: list[tuple[str, float]] = []
    answer = ask(scripted, lambda stage, fraction: heard.append((stage, fraction)) or True)
    assert answer == FRONTIER
    assert ("costs", 0.25) in heard and ("costs", 0.75) in heard
    assert sum(line.endswith("/events") for line in scripted.seen) == 1


@pytest.mark.parametrize("events", [None, [], [httpx.ReadTimeout("silent")]])
def test_without_a_stream_it_asks_again_and_again(
    slept: list[float], events: list[Any] | None
) -> None:
    looks = [job("running")] * 20 + [job("done", result=ANSWER)]
    scripted = Scripted(events, looks)
    assert ask(scripted) == FRONTIER
    assert sum(line.endswith("/events") for line in scripted.seen) == 1
    assert max(slept) == 2.0
    assert len(slept) >= 19


def test_a_stream_that_breaks_off_is_opened_again() -> None:
    events = [job("running"), httpx.ReadError("reset")]
    scripted = Scripted(events, [job("running")] * 3 + [job("done", result=ANSWER)])
    assert ask(scripted) == FRONTIER
    assert sum(line.endswith("/events") for line in scripted.seen) == 3


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("how", ["answers False", "Ctrl-C"])
def test_stopping_cancels_only_the_callers_own_job(mine: bool, how: str) -> None:
    def stop(stage: str, fraction: float) -> bool:
        if how == "Ctrl-C":
            raise KeyboardInterrupt
        return False

    scripted = Scripted([job("running")], [job("running")] * 5)
    scripted.mine = mine
    with pytest.raises(Cancelled if how == "answers False" else KeyboardInterrupt):
        ask(scripted, stop)
    assert ("DELETE /v1/frontiers/frontier_1" in scripted.seen) is mine


def test_an_interrupt_inside_a_stream_cancels_and_closes() -> None:
    scripted = Scripted([job("running"), KeyboardInterrupt()], [job("running")] * 5)
    scripted.mine = True
    with pytest.raises(KeyboardInterrupt):
        ask(scripted)
    assert scripted.seen[-1] == "DELETE /v1/frontiers/frontier_1"


def test_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(None, [job("running")] * 5)
    with pytest.raises(TimeoutError, match="still running"):
        ask(scripted, timeout_s=0.0)
    assert not any(line.startswith("DELETE") for line in scripted.seen), "the job goes on"


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        (job("failed", error={"type": "urn:shardwise:problem:invalid", "detail": "pin: x",
                              "field": "pin"}), JobRefused),
        (job("failed", error={"type": "urn:shardwise:problem:time-limit", "detail": "long"}),
         JobFailed),
        (job("cancelled"), JobCancelled),
        (job("done", result={"schema": "shardwise.infeasible/1", "reason": "no"}), Infeasible),
        (job("done", result={"schema": "shardwise.frontier/2"}), BadInput),
    ],
)  # fmt: skip
def test_ends_without_an_answer_are_errors(ended: dict[str, Any], kind: type) -> None:
    with pytest.raises(kind):
        ask(Scripted(None, [ended]))


def test_a_known_curve_costs_a_304() -> None:
    asked: list[Any] = []

    def handler(request: Any) -> Any:
        asked.append(request)
        if request.headers.get("if-none-match") == '"e"':
            return httpx.Response(304, headers={"ETag": '"e"'})
        return httpx.Response(200, json={"schema": "shardwise.curve/1", "points": []},
                              headers={"ETag": '"e"'})  # fmt: skip

    with client(handler) as opened:
        first = opened.curve("g", "h", 4, Options(overlap=False, epsilon=0.5))
        first.points.append(first)
        assert opened.curve("g", "h", 4, Options(overlap=False, epsilon=0.5)).points == []
        opened.curve("g", "h", 5)
    assert [r.headers.get("if-none-match") for r in asked] == [None, '"e"', None]
    assert dict(asked[0].url.params)["epsilon"] == "0.5"


def test_async_cancelling_a_task_cancels_its_job() -> None:
    scripted = Scripted([], [job("running")] * 1000)
    scripted.mine = True

    async def run() -> None:
        transport = httpx.MockTransport(scripted)
        async with AsyncClient(SERVER, transport=transport) as opened:
            task = asyncio.create_task(opened.frontier("g", "h", 1))
            while len(scripted.seen) < 4:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert scripted.seen[-1].startswith("DELETE")


def test_async_gives_what_sync_gives() -> None:
    async def run() -> Frontier:
        events = [job("running"), job("done")]
        scripted = Scripted(events, [job("queued"), job("done", result=ANSWER)])
        async with AsyncClient(SERVER, transport=httpx.MockTransport(scripted)) as opened:
            return await opened.frontier("g", "h", 1)

    assert asyncio.run(run()) == FRONTIER


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert calls(Client) == calls(AsyncClient)
