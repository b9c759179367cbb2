"""`Client`: the service from a program that waits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from shardwise.advise import Options
from shardwise.advise.options import Progress
from shardwise.client.administering import AdministrationCalls
from shardwise.client.blocking_administration import AdministrationMethods
from shardwise.client.blocking_launches import LaunchMethods
from shardwise.client.calls import Calls, Document
from shardwise.client.exchange import (
    Close,
    Download,
    Flow,
    Listen,
    NextLine,
    Policy,
    Reply,
    Request,
    Send,
    Sleep,
    Step,
    T,
)
from shardwise.client.job import Job, job_from
from shardwise.client.launching import LaunchCalls
from shardwise.client.questions import offers_csv
from shardwise.client.request import path_of
from shardwise.client.uploads import GraphSource, HardwareSource
from shardwise.client.wire import built, lost, reply_of, settings
from shardwise.files import private_file
from shardwise.graph import Graph
from shardwise.hardware import Hardware, Offer


class _Lines:
    """A streamed answer."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.response = response
        self.lines = response.iter_lines()


class Client(LaunchMethods, AdministrationMethods):
    """A Shardwise service. `with Client("http://127.0.0.1:8000") as client: …`

    `key`: as `shardwise keys create` printed it; a service on loopback without keys needs none.
    `timeout_s`: how long an answer to one request may take (connecting: 5 s at most). `retries`:
    how often a request is sent again whose answer was lost, or was 429 with Retry-After, 502, 503
    or 504; every request is such that a repeat changes nothing. `priority`, -10 to 10: of its
    questions among those of the same tenant; higher ones are computed first. `frontier`, `curve`,
    `plan`, `quote` and `allocate` give the documents of the functions of `shardwise.advise` and
    take the same `progress`; they upload graphs and profiles that the service lacks.

    Raises the errors of `shardwise.client.errors` and what the library raises for the same
    question: `BadInput`, `Infeasible`, `SolverError`. One client is for one thread at a time.
    """

    def __init__(
        self,
        server: str,
        *,
        key: str | None = None,
        timeout_s: float = 30.0,
        retries: int = 3,
        priority: int = 0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.server = server
        self._calls = Calls(Policy(retries), priority)
        self._launches = LaunchCalls(Policy(retries))
        self._administration = AdministrationCalls(Policy(retries))
        self._http = httpx.Client(**settings(server, key, timeout_s), transport=transport)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def health(self) -> Document:
        """Whether questions are taken and computed: `status` and `checks`."""
        return self._run(self._calls.health())

    def usage(self) -> Document:
        """What this tenant has used of each quota: `quotas` by the setting's name, each with `used`
        and `limit`."""
        return self._run(self._calls.get(path_of("usage")))

    def upload_graph(
        self,
        source: Graph | Mapping[str, Any] | bytes | Path,
        *,
        name: str | None = None,
        batch: int | None = None,
        seq: int | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Document:
        """Upload a graph (an object, a document, a `.json`, `.json.gz` or `.onnx` file, or the
        bytes of one); its `id`, name and sizes. The keywords are for ONNX: what the graph is
        called, and the sizes of dimensions that the file leaves open."""
        return self._run(
            self._calls.upload_graph(source, name=name, batch=batch, seq=seq, sizes=sizes)
        )

    def graphs(self) -> Iterator[Document]:
        """What is stored, newest first."""
        return self._list("graphs")

    def graph(self, graph_id: str) -> Document:
        """What lists say of a graph."""
        return self._run(self._calls.get(path_of("graphs", graph_id)))

    def graph_document(self, graph_id: str) -> Document:
        """A graph as `shardwise.graph/1`."""
        return self._run(self._calls.get(path_of("graphs", graph_id, "document")))

    def delete_graph(self, graph_id: str) -> None:
        """Forget a graph with all answers about it."""
        self._run(self._calls.delete(path_of("graphs", graph_id)))

    def upload_hardware(self, source: Hardware | Mapping[str, Any] | Path) -> Document:
        """Upload a profile; its `id` and what lists say of it."""
        return self._run(self._calls.upload_hardware(source))

    def hardware(self) -> Iterator[Document]:
        """The uploaded profiles, newest first, then the built-in ones."""
        return self._list("hardware")

    def hardware_document(self, name: str) -> Document:
        """A profile as `shardwise.hardware/1`, by id or built-in name."""
        return self._run(self._calls.get(path_of("hardware", name)))

    def delete_hardware(self, hardware_id: str) -> None:
        """Forget an uploaded profile."""
        self._run(self._calls.delete(path_of("hardware", hardware_id)))

    def frontier(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        gpus: int,
        options: Options | None = None,
        progress: Progress | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Document:
        """The frontier, `shardwise.frontier/1`, as `shardwise.advise.frontier` gives it."""
        return self._run(
            self._calls.answer(
                "frontier", graph, hardware, progress, timeout_s, options=options, gpus=gpus
            )
        )

    def curve(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        max_gpus: int,
        options: Options | None = None,
        progress: Progress | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Document:
        """The curve, `shardwise.curve/1`. Asked again, it costs a 304: its ETag is remembered."""
        return self._run(self._calls.curve(graph, hardware, max_gpus, options, progress, timeout_s))

    def plan(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        gpus: int,
        *,
        objective: str = "mini-time",
        point: str | None = None,
        options: Options | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Document:
        """The plan, `shardwise.plan/1`; raises `Infeasible` with the reason.

        `point`: the `plan_id` of a point of the frontier, taken instead of the objective's.
        """
        return self._run(
            self._calls.answer(
                "plan", graph, hardware, progress, timeout_s,
                options=options, gpus=gpus, objective=objective, point=point,
            )
        )  # fmt: skip

    def plan_of(self, plan_id: str) -> Document:
        """A plan that was computed, by its `id`."""
        return self._run(self._calls.plan_of(plan_id))

    def quote(
        self,
        graph: GraphSource,
        offers: Sequence[Offer] | None = None,
        *,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
        steps: int | None = None,
        max_instances: int = 16,
        options: Options | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Document:
        """The quote, `shardwise.quote/1`; without `offers` from those that the service ships."""
        return self._run(
            self._calls.answer(
                "quote", graph, None, progress, timeout_s,
                options=options, offers_csv=offers_csv(offers), deadline_s=deadline_s,
                budget_usd=budget_usd, steps=steps, max_instances=max_instances,
            )
        )  # fmt: skip

    def allocate(
        self,
        jobs: Sequence[Mapping[str, Any]],
        gpus: int,
        objective: str = "total-throughput",
        *,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Document:
        """Share GPUs among jobs, `shardwise.allocation/1`.

        A job has `name`, `weight`, `steps`, `deadline_s`, and either its `curve` or the `graph`,
        `hardware` and `options` to compute it from. `timeout_s` is for each curve.
        """
        return self._run(self._calls.allocate(jobs, gpus, objective, progress, timeout_s))

    def submit(
        self,
        kind: str,
        graph: GraphSource,
        hardware: HardwareSource | None = None,
        *,
        options: Options | None = None,
        **question: Any,
    ) -> Job:
        """Ask without waiting. `kind`: frontier, curve, plan, quote; `question`: the other members
        of the request (docs/service.md), such as `gpus`. The job goes on when this program ends."""
        return self._run(self._calls.submit(kind, graph, hardware, options=options, **question))

    def job(self, job_id: str) -> Job:
        """A job of any kind."""
        return self._run(self._calls.job(job_id))

    def jobs(
        self, *, kind: str | None = None, state: str | None = None, graph: str | None = None
    ) -> Iterator[Job]:
        """The jobs, newest first."""
        return map(job_from, self._list("jobs", kind=kind, state=state, graph=graph))

    def wait(
        self, job: Job, progress: Progress | None = None, timeout_s: float | None = None
    ) -> Job:
        """The job once it has ended; `Job.answer()` is its document.

        `progress` is called with stage and fraction whenever the service tells something, at the
        least every few seconds; when it answers False, the job is cancelled and `Cancelled`
        raised. Raises TimeoutError after `timeout_s`; the job goes on.
        """
        return self._run(self._calls.wait(job, progress, timeout_s))

    def cancel(self, job: Job | str) -> Job:
        """Ask a job to stop; one that has ended stays as it is."""
        return self._run(self._calls.cancel(job))

    def _list(self, name: str, **query: str | None) -> Iterator[Document]:
        cursor: str | None = None
        builtin: list[Document] = []
        while True:
            page = self._run(self._calls.page(path_of(*name.split("/")), query, cursor))
            yield from page["items"]
            builtin = builtin or page.get("builtin", [])
            cursor = page["next"]
            if cursor is None:
                yield from builtin
                return

    def _run(self, flow: Flow[T]) -> T:
        """Take the flow's steps; what goes wrong in one is the flow's to handle."""
        try:
            step = next(flow)
            while True:
                try:
                    outcome = self._take(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            value: T = end.value
            return value

    def _take(self, step: Step) -> Any:
        try:
            match step:
                case Send(request):
                    return reply_of(self._http.send(built(self._http, request)))
                case Sleep(seconds):
                    return time.sleep(seconds)
                case Listen(request):
                    return _Lines(self._http.send(built(self._http, request), stream=True))
                case NextLine(_Lines() as stream):
                    return next(stream.lines, None)
                case Download(request, file):
                    return self._download(request, file)
                case Close(_Lines() as stream):
                    return stream.response.close()
                case _:
                    raise AssertionError(step)
        except httpx.RequestError as error:
            raise lost(self.server, error) from None

    def _download(self, request: Request, file: Path) -> Reply:
        response = self._http.send(built(self._http, request), stream=True)
        try:
            if response.status_code != 200:
                response.read()
                return reply_of(response)
            with private_file(file) as out:
                for piece in response.iter_raw():
                    out.write(piece)
            return Reply(response.status_code, dict(response.headers), b"")
        finally:
            response.close()
