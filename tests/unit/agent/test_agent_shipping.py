"""Shipping: what is acknowledged goes, what is not stays, what cannot be read blocks nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.service import Refusal, Service, Unreachable
from agent.shipping import LONGEST_PAUSE_S, Shipper
from agent.spool import Spool

Answer = Callable[[list[dict[str, Any]]], Any]


class OtherService:
    """Answers reports as the test says; an exception is raised."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[list[str]] = []

    def report(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls.append([report["name"] for report in reports])
        answer = self.answer(reports)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


def accept(reports: list[dict[str, Any]]) -> dict[str, Any]:
    return {"accepted": [report["id"] for report in reports], "refused": []}


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    filled = Spool(tmp_path, 2**20)
    for name in "abc":
        filled.put("result", "a1", "t", name=name, document={})
    return filled


def shipper(spool: Spool) -> Shipper:
    return Shipper(lambda: pytest.fail("not connected"), spool)


def test_accepted_and_refused_reports_go(spool: Spool) -> None:
    def answer(reports: list[dict[str, Any]]) -> dict[str, Any]:
        ids = [report["id"] for report in reports]
        refused = [{"id": ids[1], "reason": "late"}, {"id": "of another", "reason": ""}]
        return {"accepted": ids[:1], "refused": refused}

    service = OtherService(answer)
    work = shipper(spool)
    work.ship(service)  # type: ignore[arg-type]
    assert [report["name"] for report in spool.batch(9, 2**20)] == ["c"]


def test_nothing_leaves_the_spool_while_the_service_is_away_and_the_pause_grows(
    spool: Spool,
) -> None:
    service = OtherService(lambda _: Unreachable("away"))
    work = shipper(spool)
    pauses = []
    for _ in range(12):
        work.ship(service)  # type: ignore[arg-type]
        pauses.append(work._pause_s)
    assert len(spool) == 3
    assert pauses[0] < 0.3
    assert LONGEST_PAUSE_S / 2 < pauses[-1] <= LONGEST_PAUSE_S
    service.answer = lambda _: Unreachable("busy", 40.0)
    work.ship(service)  # type: ignore[arg-type]
    assert work._pause_s == 40.0
    service.answer = accept
    work.ship(service)  # type: ignore[arg-type]
    assert work._pause_s == 0.0
    assert not len(spool)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_report_that_cannot_be_read_is_found_and_dropped(spool: Spool, status: int) -> None:
    def answer(reports: list[dict[str, Any]]) -> Any:
        bad = any(report["name"] == "b" for report in reports)
        return Refusal(status, "unreadable") if bad else accept(reports)

    service = OtherService(answer)
    work = shipper(spool)
    for _ in range(6):
        work.ship(service)  # type: ignore[arg-type]
    assert not len(spool)
    assert ["b"] in service.calls
    assert ["a"] in service.calls


def test_a_refused_key_keeps_the_reports(spool: Spool) -> None:
    service = OtherService(lambda _: Refusal(401, "a key is needed"))
    shipper(spool).ship(service)  # type: ignore[arg-type]
    assert len(spool) == 3


def service_that(answer: Callable[[httpx.Request], httpx.Response]) -> Service:
    service = Service("http://service.test", "swk_key", "agent_1")
    service._http = httpx.Client(
        base_url="http://service.test", transport=httpx.MockTransport(answer)
    )
    return service


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_what_may_pass_is_unreachable(status: int) -> None:
    headers = {"retry-after": "7"}
    service = service_that(lambda _: httpx.Response(status, headers=headers, json={"detail": "d"}))
    with pytest.raises(Unreachable, match=f"{status} d") as caught:
        service.report([])
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize("status", [302, 400, 401, 404, 413, 422])
def test_what_will_not_pass_is_a_refusal(status: int) -> None:
    service = service_that(lambda _: httpx.Response(status, text="<html>"))
    with pytest.raises(Refusal) as caught:
        service.heartbeat({}, 1.0)
    assert caught.value.of_the_agent == (status in (401, 404))


@pytest.mark.parametrize("text", ["", "[]", "<html>"])
def test_an_answer_that_is_not_an_object_counts_as_none(text: str) -> None:
    with pytest.raises(Unreachable, match="not a JSON object"):
        service_that(lambda _: httpx.Response(200, text=text)).report([])


def test_the_poll_waits_as_long_as_it_says() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    assert service_that(answer).next_assignment(25.0) is None
    assert str(seen[0].url) == "http://service.test/v1/agents/agent_1/assignments?wait_s=25"
    assert seen[0].extensions["timeout"]["read"] > 25
