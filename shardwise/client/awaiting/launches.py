"""The clients' methods for agents and launches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from shardwise.client.exchange import Flow, Request, T, asked, document_of
from shardwise.client.launching import (
    LOG_PAGE,
    Document,
    LaunchCalls,
    Report,
    accuracy_query,
)
from shardwise.client.request import path_of
from shardwise.client.uploads import GraphSource
from shardwise.client.webhooks import webhook_body
from shardwise.documents import LaunchRequest


class AsyncLaunchMethods:
    """Agents, launches, accuracy, refits, webhooks. The clients say how they are sent."""

    _launches: LaunchCalls

    def agents(self) -> AsyncIterator[Document]:
        """Returns the agents, newest first, as `shardwise.agent/1`."""
        return self._list("agents")

    async def agent(self, agent_id: str) -> Document:
        """Returns one agent: its state, inventory and jobs."""
        return await self._run(self._one(path_of("agents", agent_id)))

    async def enrolment_token(
        self, name: str = "", expires_s: float = 3600.0, uses: int = 1
    ) -> Document:
        """Returns a `token` with which as many agents as it has uses may enrol (scope admin)."""
        body: Document = {"name": name, "expires_s": expires_s}
        if uses != 1:  # An older service does not know `uses`.
            body["uses"] = uses
        return await self._run(self._launches.post(path_of("agents", "tokens"), body))

    async def drain_agent(self, agent_id: str, reason: str = "") -> Document:
        """Gives an agent no more work; its running jobs continue (scope admin)."""
        path = path_of("agents", agent_id, "drain")
        return await self._run(self._launches.post(path, {"reason": reason}))

    async def undrain_agent(self, agent_id: str) -> Document:
        """Gives an agent work again (scope admin)."""
        return await self._run(self._launches.post(path_of("agents", agent_id, "undrain"), {}))

    async def judge_run(self, launch_id: str, run_id: str, *, accept: bool) -> Document:
        """Accepts a held run of a launch, which then counts, or rejects it (scope admin)."""
        verb = "accept" if accept else "reject"
        path = path_of("launches", launch_id, "runs", run_id, verb)
        return await self._run(self._launches.post(path, {}))

    async def start_launch(self, graph: GraphSource | None = None, **spec: Any) -> Document:
        """Starts a launch on agents. Returns it at once: it is queued.

        The keywords are the fields of `shardwise.documents.LaunchRequest`: `plan` or `plan_id`,
        `kind`, `entry_point`, `arguments`, `agents`, `ranks_per_agent`, … A `graph` that is an
        object is uploaded first.
        """
        return await self._run(self._launches.start(LaunchRequest(**spec), graph))

    def launches(self, state: str | None = None) -> AsyncIterator[Document]:
        """Returns the launches, newest first."""
        return self._list("launches", state=state)

    async def launch(self, launch_id: str) -> Document:
        """Returns one launch with its `assignments` and `runs`."""
        return await self._run(self._launches.get(launch_id))

    async def stop_launch(self, launch_id: str) -> Document:
        """Stops a launch; one that has ended stays as it is."""
        return await self._run(self._launches.delete(path_of("launches", launch_id)))

    async def forget_launch(self, launch_id: str) -> None:
        """Deletes an ended launch with its output and what it measured."""
        await self._run(self._launches.forget(launch_id))

    async def wait_launch(
        self,
        launch_id: str,
        report: Report | None = None,
        line: Report | None = None,
        timeout_s: float | None = None,
    ) -> Document:
        """Returns the launch once it has ended: done, failed, stopped or lost.

        `report` gets its document whenever it was read, `line` each line of its output once.
        Raises TimeoutError after `timeout_s`; the launch goes on.
        """
        return await self._run(self._launches.wait(launch_id, report, line, timeout_s))

    async def launch_log(
        self, launch_id: str, after: int = 0, rank: int | None = None, limit: int = LOG_PAGE
    ) -> Document:
        """Returns up to `limit` lines of output after line `after`; `next` is the next `after`."""
        return await self._run(self._launches.log_page(launch_id, after, rank, limit))

    async def accuracy(self, graph: str | None = None, hardware: str | None = None) -> Document:
        """Returns how far predictions were off, by model and hardware (ids, or a built-in name)."""
        query = accuracy_query(graph, hardware)
        return await self._run(self._one(path_of("accuracy"), query))

    async def refit_hardware(
        self, hardware: str, launches: Sequence[str] | None = None
    ) -> Document:
        """Returns a new version of a profile, fitted to what was measured on it (in these
        launches)."""
        body = {} if launches is None else {"launches": list(launches)}
        return await self._run(self._launches.post(path_of("hardware", hardware, "refits"), body))

    def hardware_versions(self, hardware: str) -> AsyncIterator[Document]:
        """Returns the profiles of this one's name, newest first, then the built-in one."""
        return self._list(f"hardware/{hardware}/versions")

    async def make_webhook(
        self,
        url: str,
        events: Sequence[str],
        *,
        kinds: Sequence[str] = (),
        states: Sequence[str] = (),
        name: str = "",
    ) -> Document:
        """Makes a webhook: the URL is sent `job.ended` and `launch.ended` (scope admin).

        The answer's `secret` is shown only once. Without `kinds` and `states` it gets all of them.
        """
        body = webhook_body(url, events, kinds, states, name)
        return await self._run(self._launches.post(path_of("webhooks"), body))

    def webhooks(self) -> AsyncIterator[Document]:
        """Returns the webhooks, newest first (scope admin)."""
        return self._list("webhooks")

    async def webhook(self, webhook_id: str) -> Document:
        """Returns one webhook: what it is sent, and whether it is delivered (scope admin)."""
        return await self._run(self._one(path_of("webhooks", webhook_id)))

    async def test_webhook(self, webhook_id: str) -> Document:
        """Sends a test event once. Returns the delivery (scope admin)."""
        return await self._run(self._launches.post(path_of("webhooks", webhook_id, "test"), {}))

    def webhook_deliveries(
        self, webhook_id: str, state: str | None = None
    ) -> AsyncIterator[Document]:
        """Returns what became of each event, newest first (scope admin)."""
        return self._list(f"webhooks/{webhook_id}/deliveries", state=state)

    async def delete_webhook(self, webhook_id: str) -> None:
        """Deletes a webhook with its deliveries (scope admin)."""
        await self._run(self._launches.remove(path_of("webhooks", webhook_id)))

    def _one(self, path: str, query: dict[str, str] | None = None) -> Flow[Document]:
        request = Request("GET", path, tuple((query or {}).items()))
        return document_of((yield from asked(request, self._launches.policy)))

    def _list(self, name: str, **query: str | None) -> AsyncIterator[Document]:
        raise NotImplementedError

    async def _run(self, flow: Flow[T]) -> T:
        raise NotImplementedError
