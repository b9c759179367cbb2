"""`AsyncClient` and `Client`: the calls of the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from shardwise.answers import Options
from shardwise.client.administering import AdministrationCalls
from shardwise.client.awaiting.administration import AsyncAdministrationMethods
from shardwise.client.awaiting.launches import AsyncLaunchMethods
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
    Work,
)
from shardwise.client.job import Job, job_from
from shardwise.client.launching import LaunchCalls
from shardwise.client.questions import (
    curve_members,
    devices_text,
    offers_csv,
    staged,
)
from shardwise.client.request import path_of
from shardwise.client.uploads import GraphSource, HardwareSource
from shardwise.client.wire import built, lost, reply_of, settings
from shardwise.client.work import off_loop
from shardwise.cost.options import Progress
from shardwise.documents import Comparison, Curve, Export, Frontier, Plan, Pricing, Quote
from shardwise.documents.jobs import Allocation
from shardwise.errors import InternalError
from shardwise.files import private_file
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware, Offer
from shardwise.pipeline.asked import ANY, DEFAULT_SCHEDULES, NO_STAGES
from shardwise.step_sizes import sized_source


class _Lines:
    """A streamed answer."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.response = response
        self.lines = response.aiter_lines()


class AsyncClient(AsyncLaunchMethods, AsyncAdministrationMethods):
    """A Shardwise service.

        with Client("http://127.0.0.1:8000") as client: …
        async with AsyncClient("http://127.0.0.1:8000") as client: …

    `AsyncClient` has the methods of `Client` as coroutines. `key`: as `shardwise keys create`
    printed it; a service on loopback without keys needs none. `timeout_s`: how long an answer to
    one request may take (connecting: 5 s at most). `retries`: how often a request is repeated
    whose answer was lost, or was 429 with Retry-After, 502, 503 or 504; a repeat never changes
    anything. `priority`, -10 to 10: of its questions among those of the same
    tenant; higher ones are computed first. `frontier`, `curve`, `plan` and `quote` return what the
    functions of `shardwise.answers` return and take the same `progress`; they, `pricing` and
    `compare` upload graphs and profiles that the service lacks.

    Raises the errors of `shardwise.client.errors` and what the library raises for the same
    question: `BadInput`, `Infeasible`, `SolverError`. A `Client` is for one thread at a time; an
    `AsyncClient` serves any number of tasks, and a task that is cancelled inside such a call
    cancels the job too, if this call made it.
    """

    def __init__(
        self,
        server: str,
        *,
        key: str | None = None,
        timeout_s: float = 30.0,
        retries: int = 3,
        priority: int = 0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.server = server
        self._calls = Calls(Policy(retries), priority)
        self._launches = LaunchCalls(Policy(retries))
        self._administration = AdministrationCalls(Policy(retries))
        self._http = httpx.AsyncClient(**settings(server, key, timeout_s), transport=transport)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def health(self) -> Document:
        """Returns whether questions are taken and computed: `status` and `checks`."""
        return await self._run(self._calls.health())

    async def usage(self) -> Document:
        """Returns what this tenant has used of each quota: `quotas` by the setting's name, each
        with `used` and `limit`."""
        return await self._run(self._calls.get(path_of("usage")))

    async def upload_graph(
        self,
        source: Graph | Mapping[str, Any] | bytes | Path,
        *,
        name: str | None = None,
        batch: int | None = None,
        seq: int | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Document:
        """Uploads a graph (an object, a document, a `.json`, `.json.gz` or `.onnx` file, or the
        bytes of one). Returns its `id`, name and sizes. The keywords are for ONNX: the graph's
        name, and the sizes of dimensions that the file leaves open."""
        return await self._run(
            self._calls.upload_graph(source, name=name, batch=batch, seq=seq, sizes=sizes)
        )

    def graphs(self) -> AsyncIterator[Document]:
        """Returns the stored graphs, newest first."""
        return self._list("graphs")

    async def graph(self, graph_id: str) -> Document:
        """Returns what lists say of a graph."""
        return await self._run(self._calls.get(path_of("graphs", graph_id)))

    async def graph_document(self, graph_id: str) -> Document:
        """Returns a graph as `shardwise.graph/1`."""
        return await self._run(self._calls.get(path_of("graphs", graph_id, "document")))

    async def delete_graph(self, graph_id: str) -> None:
        """Deletes a graph with all answers about it."""
        await self._run(self._calls.delete(path_of("graphs", graph_id)))

    async def upload_hardware(self, source: Hardware | Mapping[str, Any] | Path) -> Document:
        """Uploads a profile. Returns its `id` and its summary, as in lists."""
        return await self._run(self._calls.upload_hardware(source))

    def hardware(self) -> AsyncIterator[Document]:
        """Returns the uploaded profiles, newest first, then the built-in ones."""
        return self._list("hardware")

    async def hardware_document(self, name: str) -> Document:
        """Returns a profile as `shardwise.hardware/1`, by id or built-in name."""
        return await self._run(self._calls.get(path_of("hardware", name)))

    async def delete_hardware(self, hardware_id: str) -> None:
        """Deletes an uploaded profile."""
        await self._run(self._calls.delete(path_of("hardware", hardware_id)))

    async def frontier(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        gpus: int | str | Devices,
        options: Options | None = None,
        progress: Progress | None = None,
        *,
        stages: Sequence[int] | None = NO_STAGES,
        schedules: Sequence[str] = DEFAULT_SCHEDULES,
        batch: int | None = None,
        seq: int | None = None,
        timeout_s: float | None = None,
    ) -> Frontier:
        """Returns the frontier, `shardwise.frontier/1`, as `shardwise.answers.frontier` gives it.

        `gpus` is a number, or devices by group such as `v100=2,1080ti=4`. With numbers of `stages`
        (None: all that are possible) it has `pipelines` too. `batch` and `seq` are other sizes of a
        preset than those of its table, here and in every question.
        """
        return await self._run(
            self._calls.answer(
                Frontier, sized_source(graph, batch, seq), hardware, progress, timeout_s,
                options=options, gpus=devices_text(gpus), **staged(stages, schedules),
            )
        )  # fmt: skip

    async def curve(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        max_gpus: int | None = None,
        options: Options | None = None,
        progress: Progress | None = None,
        *,
        counts: Sequence[int] = (),
        bundles: Sequence[str | Devices] = (),
        space: str = ANY,
        stages: Sequence[int] | None = NO_STAGES,
        schedules: Sequence[str] = DEFAULT_SCHEDULES,
        batch: int | None = None,
        seq: int | None = None,
        timeout_s: float | None = None,
    ) -> Curve:
        """Returns the curve, `shardwise.curve/1`: up to `max_gpus`, of `counts`, or with groups of
        devices of the `bundles`, texts such as `v100=2,1080ti=4`, or `usual`.

        With numbers of `stages` (None: all that are possible) points have pipelines too; `space` is
        a trainer, whose strategies alone are searched. Asking again costs a 304: its ETag is
        remembered. A curve that met a limit names what is `missing`; asking again goes on with
        that.
        """
        return await self._run(
            self._calls.curve(
                sized_source(graph, batch, seq),
                hardware,
                max_gpus,
                options,
                progress,
                timeout_s,
                [str(bundle) for bundle in bundles],
                curve_members(counts, space, stages, schedules),
            )
        )

    async def solve(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        gpus: int | str | Devices,
        *,
        objective: str = "mini-time",
        point: str | None = None,
        order: str | None = None,
        space: str = ANY,
        stages: Sequence[int] | None = NO_STAGES,
        schedules: Sequence[str] | None = None,
        options: Options | None = None,
        progress: Progress | None = None,
        batch: int | None = None,
        seq: int | None = None,
        timeout_s: float | None = None,
    ) -> Plan:
        """Returns the strategy that a question asks for; raises `Infeasible` with the reason.

        As `shardwise.solve.solve`: `point` is the `plan_id` of a point of the frontier, taken
        instead of the objective's, `space` a trainer whose strategies alone are searched
        (docs/trainers.md), `stages` numbers of pipeline stages, None for all that are possible
        (docs/pipelines.md); `gpus` is as in `frontier`.
        """
        return await self._run(
            self._calls.solve(
                sized_source(graph, batch, seq), hardware, progress, timeout_s, stages, schedules,
                options=options, gpus=devices_text(gpus), objective=objective, point=point,
                order=order, space=space,
            )
        )  # fmt: skip

    async def plan(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        gpus: int | str | Devices,
        *,
        objective: str = "mini-time",
        point: str | None = None,
        order: str | None = None,
        space: str = ANY,
        options: Options | None = None,
        progress: Progress | None = None,
        batch: int | None = None,
        seq: int | None = None,
        timeout_s: float | None = None,
    ) -> Plan:
        """Returns the plan without stages, as `solve`."""
        return await self._run(
            self._calls.answer(
                Plan, sized_source(graph, batch, seq), hardware, progress, timeout_s,
                options=options, gpus=devices_text(gpus), objective=objective, point=point,
                order=order, space=space,
            )
        )  # fmt: skip

    async def pipeline_or_plan(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        gpus: int | str | Devices,
        *,
        stages: Sequence[int] | None = None,
        schedules: Sequence[str] = DEFAULT_SCHEDULES,
        options: Options | None = None,
        progress: Progress | None = None,
        batch: int | None = None,
        seq: int | None = None,
        timeout_s: float | None = None,
    ) -> Plan:
        """Returns the fastest pipeline of one of these numbers of stages, or without one the plan,
        as `solve`."""
        return await self.solve(
            graph, hardware, gpus, stages=stages, schedules=schedules, options=options,
            progress=progress, batch=batch, seq=seq, timeout_s=timeout_s,
        )  # fmt: skip

    async def plan_of(self, plan_id: str) -> Plan:
        """Returns a plan or a pipeline that was computed, by its `id`."""
        return await self._run(self._calls.plan_of(plan_id))

    async def export(
        self,
        plan_id: str,
        *,
        to: str | None = None,
        format: str | None = None,
        gpu_type: str | None = None,
    ) -> Export:
        """Returns a computed plan as the trainer `to` or the scheduler `format` reads it.

        `gpu_type` is the scheduler's name of the GPU.
        """
        return await self._run(self._calls.export(plan_id, to, format, gpu_type))

    async def pricing(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        gpus: int,
        configuration: str,
        *,
        file: str = "configuration",
        options: Options | None = None,
        progress: Progress | None = None,
        batch: int | None = None,
        seq: int | None = None,
        timeout_s: float | None = None,
    ) -> Pricing:
        """Returns what a trainer's configuration takes and what to change, `shardwise.pricing/1`.

        `configuration` is the text of the trainer's file, which errors call `file`.
        """
        return await self._run(
            self._calls.answer(
                Pricing, sized_source(graph, batch, seq), hardware, progress, timeout_s,
                options=options, gpus=gpus, configuration=configuration, file=file,
            )
        )  # fmt: skip

    async def quote(
        self,
        graph: GraphSource,
        offers: Sequence[Offer] | None = None,
        *,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
        steps: int | None = None,
        max_instances: int = 16,
        combine: int = 1,
        hardware: HardwareSource | None = None,
        prices: Mapping[str, float] | None = None,
        options: Options | None = None,
        progress: Progress | None = None,
        stages: Sequence[int] | None = NO_STAGES,
        schedules: Sequence[str] = DEFAULT_SCHEDULES,
        batch: int | None = None,
        seq: int | None = None,
        timeout_s: float | None = None,
    ) -> Quote:
        """Returns the quote, `shardwise.quote/1`.

        Without `offers` it uses those that the service ships. `combine`, `hardware`, `prices`,
        `stages` and `schedules` are as in `shardwise.answers.quote`.
        """
        return await self._run(
            self._calls.answer(
                Quote, sized_source(graph, batch, seq), hardware, progress, timeout_s,
                options=options, offers_csv=offers_csv(offers), deadline_s=deadline_s,
                budget_usd=budget_usd, steps=steps, max_instances=max_instances,
                combine=combine, prices=dict(prices or {}), **staged(stages, schedules),
            )
        )  # fmt: skip

    async def compare(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        gpus: int | str | Devices,
        options: Options | None = None,
        progress: Progress | None = None,
        *,
        proposals: int | None = None,
        seed: int = 0,
        stages: Sequence[int] | None = NO_STAGES,
        schedules: Sequence[str] = DEFAULT_SCHEDULES,
        batch: int | None = None,
        seq: int | None = None,
        timeout_s: float | None = None,
    ) -> Comparison:
        """Returns what practitioners and other systems use beside our answer,
        `shardwise.compare/1`, as `shardwise.peers.compare` gives it.

        `gpus` is as in `frontier`; `proposals` and `seed` are those of FlexFlow's random search.
        With numbers of `stages` (None: all that are possible) pipelines are compared too, ours
        under some of the `schedules`.
        """
        return await self._run(
            self._calls.answer(
                Comparison, sized_source(graph, batch, seq), hardware, progress, timeout_s,
                options=options, gpus=devices_text(gpus), proposals=proposals, seed=seed,
                **staged(stages, schedules),
            )
        )  # fmt: skip

    async def curves(self, questions: Sequence[Mapping[str, Any]]) -> Document:
        """Returns the states and answers of many curves, `shardwise.curves/1`, without waiting.

        A question has `graph`, `hardware` and `max_gpus`, `counts` or `bundles`, and what else a
        curve takes; graphs and profiles that are objects are uploaded first. Asking again goes on
        with what is not known.
        """
        return await self._run(self._calls.curves(questions))

    async def allocate(
        self,
        jobs: Sequence[Mapping[str, Any]],
        gpus: int,
        objective: str = "total-throughput",
        *,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Allocation:
        """Returns how to share GPUs among jobs, `shardwise.allocation/1`.

        A job has `name`, `weight`, `steps`, `deadline_s`, and either its `curve` or the `graph`,
        `hardware` and `options` to compute it from, with `stages` (numbers, or `auto`) and
        `schedules` of pipelines too. `timeout_s` is for each curve.
        """
        return await self._run(self._calls.allocate(jobs, gpus, objective, progress, timeout_s))

    async def submit(
        self,
        kind: str,
        graph: GraphSource,
        hardware: HardwareSource | None = None,
        *,
        options: Options | None = None,
        **question: Any,
    ) -> Job:
        """Asks without waiting.

        `kind`: frontier, curve, plan, pricing, quote, compare; `question`: the other members of
        the request (docs/service.md), such as `gpus`. The job goes on when this program ends.
        """
        return await self._run(
            self._calls.submit(kind, graph, hardware, options=options, **question)
        )

    async def job(self, job_id: str) -> Job:
        """Returns a job of any kind."""
        return await self._run(self._calls.job(job_id))

    def jobs(
        self, *, kind: str | None = None, state: str | None = None, graph: str | None = None
    ) -> AsyncIterator[Job]:
        """Returns the jobs, newest first."""
        pages = self._list("jobs", kind=kind, state=state, graph=graph)
        return (job_from(document) async for document in pages)

    async def wait(
        self, job: Job, progress: Progress | None = None, timeout_s: float | None = None
    ) -> Job:
        """Returns the job once it has ended; `Job.answer()` is its document.

        `progress` is called with stage and fraction at each event of the service, at least every
        few seconds; when it returns False, the job is cancelled and `Cancelled` raised. Raises
        TimeoutError after `timeout_s`; the job goes on.
        """
        return await self._run(self._calls.wait(job, progress, timeout_s))

    async def cancel(self, job: Job | str) -> Job:
        """Asks a job to stop; one that has ended stays as it is."""
        return await self._run(self._calls.cancel(job))

    async def _list(self, name: str, **query: str | None) -> AsyncIterator[Document]:
        cursor: str | None = None
        builtin: list[Document] = []
        while True:
            page = await self._run(self._calls.page(path_of(*name.split("/")), query, cursor))
            for item in page["items"]:
                yield item
            builtin = builtin or page.get("builtin", [])
            cursor = page["next"]
            if cursor is None:
                for item in builtin:
                    yield item
                return

    async def _run(self, flow: Flow[T]) -> T:
        """Runs the flow's steps; the flow handles the errors of each."""
        try:
            step = next(flow)
            while True:
                try:
                    outcome = await self._take(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _take(self, step: Step) -> Any:
        try:
            match step:
                case Send(request):
                    return reply_of(await self._http.send(built(self._http, request)))
                case Sleep(seconds):
                    return await asyncio.sleep(seconds)
                case Listen(request):
                    return _Lines(await self._http.send(built(self._http, request), stream=True))
                case NextLine(_Lines() as stream):
                    return await anext(stream.lines, None)
                case Download(request, file):
                    return await self._download(request, file)
                case Close(_Lines() as stream):
                    return await stream.response.aclose()
                case Work(call):
                    return await off_loop(call)
                case _:
                    raise InternalError(f"no step of a client: {step}")
        except httpx.RequestError as error:
            raise lost(self.server, error) from None

    async def _download(self, request: Request, file: Path) -> Reply:
        response = await self._http.send(built(self._http, request), stream=True)
        try:
            if response.status_code != 200:
                await response.aread()
                return reply_of(response)
            with private_file(file) as out:
                async for piece in response.aiter_raw():
                    out.write(piece)
            return Reply(response.status_code, dict(response.headers), b"")
        finally:
            await response.aclose()
