"""`GET /v1/plans/{id}/export`: a stored plan or pipeline as a scheduler or a trainer reads it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.datastructures import QueryParams

from service.base.problems import Problem
from service.edge.context import Result
from service.edge.curve_forms import MOST_GPU_TYPE
from service.questions.question import INFEASIBLE_SCHEMA
from shardwise.documents import Plan, read
from shardwise.errors import BadInput
from shardwise.schedulers.exported import exported
from shardwise.schedulers.formats import PLAN_FORMS
from shardwise.trainers.formats import TRAINERS

TO, FORMAT, GPU_TYPE = "to", "format", "gpu_type"
OF_ANSWER = ("ETag", "Location")
"""Headers of a plan that are not those of its export."""


@dataclass(frozen=True)
class Wanted:
    """A scheduler's format or a trainer, and what the scheduler calls the GPUs."""

    form: str | None
    trainer: str | None
    gpu_type: str | None

    def export(self, result: Result) -> None:
        """Puts the export of a job's plan or pipeline in place of the job.

        Raises `BadInput` and `Problem`.
        """
        plan = plan_of(result)
        result.document = exported(plan, self.form, self.trainer, self.gpu_type)
        result.headers = {k: v for k, v in result.headers.items() if k not in OF_ANSWER}


def wanted(query: QueryParams) -> Wanted:
    """Returns the requested format. Raises `BadInput` naming the parameter."""
    form, trainer, gpu_type = (query.get(name) or None for name in (FORMAT, TO, GPU_TYPE))
    for name, value, known in ((FORMAT, form, PLAN_FORMS), (TO, trainer, tuple(TRAINERS))):
        if value is not None and value not in known:
            raise BadInput(f"got {value[:40]!r}", field=name, expected=", ".join(known))
    if gpu_type is not None and len(gpu_type) > MOST_GPU_TYPE:
        raise BadInput(
            f"longer than {MOST_GPU_TYPE} characters",
            field=GPU_TYPE,
            expected=f"at most {MOST_GPU_TYPE}",
        )
    return Wanted(form, trainer, gpu_type)


def plan_of(result: Result) -> Plan:
    """Returns the plan or the pipeline of a job's result. Raises `Problem` for a job that has
    neither."""
    job = result.document
    if "result" not in job:
        raise Problem("not-found", f"{job['id']} is {job['state']} and has no plan")
    answer = msgspec.json.decode(job["result"])
    if answer["schema"] == INFEASIBLE_SCHEMA:
        raise Problem("not-found", answer["reason"])
    return read(answer, Plan)
