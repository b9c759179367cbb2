"""Agents and launches as flows: what `Client` runs and `AsyncClient` awaits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from msgspec import structs

from shardwise.client.exchange import (
    Flow,
    Policy,
    Request,
    Sleep,
    asked,
    deleted,
    document_of,
)
from shardwise.client.request import path_of, post_json
from shardwise.client.uploads import GraphSource, upload_of_graph
from shardwise.client.waiting import MORE_RETRIES, POLL_S
from shardwise.documents import LaunchRequest, request_body, unfolded
from shardwise.graph import Graph

Document = dict[str, Any]
ENDED = ("done", "failed", "stopped", "lost")
LOG_PAGE = 1000

Report = Callable[[Document], None]
"""Gets a launch's document whenever it was read, or one line of its output."""


class LaunchCalls:
    """The flows about agents, launches, accuracy and refits."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def post(self, path: str, body: Any) -> Flow[Document]:
        """Returns a POST that may be sent again."""
        return document_of((yield from asked(post_json(path, body), self.policy)))

    def delete(self, path: str) -> Flow[Document]:
        """Returns a DELETE that is answered with a document."""
        return document_of((yield from asked(Request("DELETE", path), self.policy)))

    def forget(self, launch_id: str) -> Flow[None]:
        """Deletes an ended launch. Raises `Missing` if it did not exist."""
        query = (("forget", "true"),)
        yield from deleted(Request("DELETE", path_of("launches", launch_id), query), self.policy)

    def remove(self, path: str) -> Flow[None]:
        """Deletes, without a document in return. Raises `Missing` if it did not exist."""
        yield from deleted(Request("DELETE", path), self.policy)

    def start(self, ask: LaunchRequest, graph: GraphSource | None) -> Flow[Document]:
        """Starts a launch; a graph that is given as an object is uploaded first."""
        if isinstance(graph, Graph):
            yield from asked(upload_of_graph(graph), self.policy)
        # An older service reads version 1 alone.
        ask = structs.replace(ask, plan=unfolded(ask.plan))
        return (yield from self.post(path_of("launches"), request_body(ask)))

    def get(self, launch_id: str) -> Flow[Document]:
        """Returns one launch."""
        return document_of(
            (yield from asked(Request("GET", path_of("launches", launch_id)), self.policy))
        )

    def log_page(self, launch_id: str, after: int, rank: int | None, limit: int) -> Flow[Document]:
        """Returns a page of output after line `after`."""
        query = [("after", str(after)), ("limit", str(limit))]
        if rank is not None:
            query.append(("rank", str(rank)))
        request = Request("GET", path_of("launches", launch_id, "logs"), tuple(query))
        return document_of((yield from asked(request, self.policy)))

    def wait(
        self, launch_id: str, report: Report | None, line: Report | None, timeout_s: float | None
    ) -> Flow[Document]:
        """Returns the launch once it has ended. Raises TimeoutError; the launch goes on."""
        patient = LaunchCalls(replace(self.policy, retries=self.policy.retries + MORE_RETRIES))
        until = None if timeout_s is None else monotonic() + timeout_s
        after, pause_s = 0, POLL_S[0]
        while True:
            launch = yield from patient.get(launch_id)
            if report is not None:
                report(launch)
            before = after
            if line is not None:
                after = yield from patient._report_lines(launch_id, after, line)
            if launch["state"] in ENDED:
                return launch
            if until is not None and monotonic() > until:
                raise TimeoutError(
                    f"the launch {launch_id} is still {launch['state']} after {timeout_s:g} s"
                )
            pause_s = POLL_S[0] if after > before else min(pause_s * 1.5, POLL_S[1])
            yield Sleep(pause_s)

    def _report_lines(self, launch_id: str, after: int, line: Report) -> Flow[int]:
        """Passes on all lines after `after`. Returns the number of the last."""
        while True:
            page = yield from self.log_page(launch_id, after, None, LOG_PAGE)
            for row in page["lines"]:
                line(row)
            after = int(page["next"])
            if not page["more"]:
                return after


def accuracy_query(graph: str | None, hardware: str | None) -> dict[str, str]:
    """Returns the query of `GET /v1/accuracy`."""
    given = {"graph": graph, "hardware": hardware}
    return {name: value for name, value in given.items() if value is not None}
