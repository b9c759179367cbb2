"""Allocations: n GPUs shared among jobs, by curves in the request or computed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from service.base.json_body import read_object
from service.base.problems import Problem
from service.edge.context import RequestContext, Result
from service.handlers.forecast import retry_after
from service.handlers.graphs import learn_names, resolve_graph
from service.handlers.jobs import begun, limits_of, require_no_failure
from service.questions.question import Question, curve_question
from service.store.curve_answers import settled_answer
from service.store.hardware import find_hardware
from shardwise import documents
from shardwise.answers import AllocationJob, allocate, job_from_curve
from shardwise.answers.allocation import CurvePoint
from shardwise.documents import CurveRequest
from shardwise.documents.frontier import axes_of
from shardwise.documents.questions import Schedules, SearchOptions, StagesBeside
from shardwise.errors import BadInput
from shardwise.validation import convert

PENDING_SCHEMA = "shardwise.pending/1"
MAX_JOBS = 1000
MAX_POINTS = 4096
MOST_LEARNT = 4
"""Jobs whose rules on operators are checked here; workers check those of the others."""


class PipelineGiven(msgspec.Struct):
    """The pipeline of a count of a curve in the request; other members are ignored."""

    step_s: float
    samples_per_s: float | None = None


class PointRequest(msgspec.Struct):
    """One count of a curve in the request; other members of a curve are ignored."""

    gpus: int
    feasible: bool = True
    time_s: float | None = None
    samples_per_s: float | None = None
    replayed_time_s: float | None = None
    pipeline: PipelineGiven | None = None


class CurveGiven(msgspec.Struct):
    """A curve in the request: `shardwise.curve/1`, or its points alone.

    With `overlap` a step takes the `replayed_time_s` of its points, else their `time_s`; where a
    point has a `pipeline`, the `step_s` of that.
    """

    points: list[PointRequest]
    overlap: bool = False

    @property
    def time(self) -> str:
        """The member of a point that says how long a step takes."""
        return axes_of(self.overlap)[1]

    def counts(self) -> tuple[CurvePoint, ...]:
        """Returns the counts that fit, once their numbers are checked."""
        steps = []
        for point in self.points:
            if point.pipeline is not None:
                steps.append((point.gpus, point.pipeline.step_s, point.pipeline.samples_per_s))
            elif point.feasible:
                steps.append((point.gpus, getattr(point, self.time), point.samples_per_s))
        return tuple(CurvePoint(gpus, s, samples or 1.0 / s) for gpus, s, samples in steps)


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A job: with its curve, or with the graph and the hardware to compute it from, and then the
    pipelines that it may be run as."""

    name: str = ""
    curve: CurveGiven | None = None
    graph: str | None = None
    hardware: str | None = None
    options: SearchOptions = {}
    weight: float = 1.0
    steps: int | None = None
    deadline_s: float | None = None
    stages: StagesBeside | None = None
    schedules: Schedules = []


class AllocationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/allocations`."""

    jobs: list[JobRequest]
    gpus: int
    objective: str = "total-throughput"


@dataclass
class Gathered:
    """The jobs with their curves, as far as they are known."""

    jobs: list[AllocationJob]
    missing: list[tuple[str, Question]]


def parse_allocation(context: RequestContext) -> AllocationRequest:
    """Returns the request of the body, its numbers checked."""
    value = read_object(context.body, context.settings.max_json_depth)
    ask = convert(value, AllocationRequest)
    if not 1 <= ask.gpus <= context.settings.max_curve_gpus:
        most = context.settings.max_curve_gpus
        raise BadInput(f"got {ask.gpus}", field="gpus", expected=f"a whole number from 1 to {most}")
    if not 1 <= len(ask.jobs) <= MAX_JOBS:
        raise BadInput(f"{len(ask.jobs)} jobs", field="jobs", expected=f"1 to {MAX_JOBS}")
    for i, job in enumerate(ask.jobs):
        _check_job(job, f"jobs[{i}]")
    for job in [job for job in ask.jobs if job.options.get("pins")][:MOST_LEARNT]:
        learn_names(context, job.graph or "", job.options)
    return ask


def _check_job(job: JobRequest, at: str) -> None:
    if (job.curve is None) == (job.graph is None):
        raise BadInput("got neither or both of curve and graph", field=at, expected="one of them")
    if job.curve is None:
        _computed_from(job, at)
    if job.steps is not None and not 1 <= job.steps <= 10**12:
        raise BadInput(f"got {job.steps}", field=f"{at}.steps", expected="1 to 10^12")
    if job.deadline_s is not None and not 0 < job.deadline_s <= 1e12:
        raise BadInput(
            f"got {job.deadline_s}", field=f"{at}.deadline_s", expected="above 0, to 1e12"
        )
    if job.curve is not None:
        for name in ("stages", "schedules"):
            if getattr(job, name):
                raise BadInput(
                    "does not apply to a given curve", field=f"{at}.{name}", expected=f"no {name}"
                )
        _check_curve(job.curve, f"{at}.curve")


def _computed_from(job: JobRequest, at: str) -> tuple[str, str]:
    """Returns the graph and the hardware from which the curve of a job is computed."""
    if job.graph is None:
        raise BadInput("missing", field=f"{at}.graph", expected="a graph")
    if job.hardware is None:
        raise BadInput("missing", field=f"{at}.hardware", expected="a profile")
    return job.graph, job.hardware


def _check_curve(curve: CurveGiven, at: str) -> None:
    if len(curve.points) > MAX_POINTS:
        raise BadInput(
            f"got {len(curve.points)}", field=f"{at}.points", expected=f"at most {MAX_POINTS}"
        )
    for p, point in enumerate(curve.points):
        where = f"{at}.points[{p}]"
        if not 1 <= point.gpus <= 10**6:
            raise BadInput(f"got {point.gpus}", field=f"{where}.gpus", expected="1 to 1000000")
        if point.pipeline is not None:
            of_step: Any = point.pipeline
            where, time = f"{where}.pipeline", "step_s"
        elif point.feasible:
            of_step, time = point, curve.time
        else:
            continue
        for name in (time, "samples_per_s"):
            number = getattr(of_step, name)
            if number is None and name == "samples_per_s":
                continue
            if number is None or not 1e-15 <= number <= 1e15:
                raise BadInput(f"got {number}", field=f"{where}.{name}", expected="1e-15 to 1e15")


def gather(context: RequestContext, ask: AllocationRequest, *, keep: bool) -> Gathered:
    """Returns the curve of every job; `missing` lists the questions not answered yet."""
    gathered = Gathered([], [])
    for i, job in enumerate(ask.jobs):
        name = job.name or f"job {i + 1}"
        if job.curve is not None:
            points = job.curve.counts()
            gathered.jobs.append(AllocationJob(name, points, job.weight, job.steps, job.deadline_s))
            continue
        question = _question(context, job, ask.gpus, f"jobs[{i}]", keep=keep)
        stored = settled_answer(context.session, context.tenant, question)
        if stored is None:
            require_no_failure(context, question)
            gathered.missing.append((f"jobs[{i}]", question))
            continue
        gathered.jobs.append(
            job_from_curve(
                documents.read(msgspec.json.decode(stored.content), documents.Curve),
                name,
                weight=job.weight,
                steps=job.steps,
                deadline_s=job.deadline_s,
            )
        )
    return gathered


def _question(
    context: RequestContext, job: JobRequest, gpus: int, at: str, *, keep: bool
) -> Question:
    graph_name, hardware_name = _computed_from(job, at)
    try:
        hardware = find_hardware(context.session, context.tenant, hardware_name)
        most = min(gpus, hardware.per_node * hardware.max_nodes)
        ask = CurveRequest(
            graph_name,
            hardware_name,
            most,
            job.options,
            stages=job.stages,
            schedules=job.schedules,
        )
        graph = resolve_graph(context, graph_name, keep=keep)
        return curve_question(ask, graph, hardware, limits_of(context))
    except BadInput as error:
        raise _in_job(error, at) from None


def _in_job(error: BadInput, at: str) -> BadInput:
    field = f"{at}.{error.field}" if error.field else at
    return BadInput(error.problem, field=field, expected=error.expected)


def known_allocation(context: RequestContext) -> Result:
    """Returns 200 with the allocation if every curve is known; else 202 without a body."""
    ask: AllocationRequest = context.parsed
    gathered = gather(context, ask, keep=False)
    if gathered.missing:
        return Result(202)
    context.session.close()  # what follows may take a second and needs no database
    return Result(document=allocate(gathered.jobs, ask.gpus, ask.objective))


def start_allocation(context: RequestContext) -> Result:
    """Returns 202: the missing curves are being computed; ask again."""
    gathered = gather(context, context.parsed, keep=True)
    result = Result(202, repeatable=True)
    waiting, last_s = {}, 0.0
    for at, question in gathered.missing:
        try:
            one = begun(context, question)
        except BadInput as error:
            raise _in_job(error, at) from None
        waiting[one.job.id] = one.item
        last_s = max(last_s, one.ends_s)
        if one.created:
            result.ring.append(one.job.id)
    if not waiting:
        raise Problem("unavailable", "the curves have just been computed: ask again",
                      headers={"Retry-After": "1"})  # fmt: skip
    result.headers["Retry-After"] = retry_after([last_s])
    result.document = {"schema": PENDING_SCHEMA, "waiting_for": list(waiting.values())}
    return result
