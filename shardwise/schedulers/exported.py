"""A plan or a pipeline as the document of an export: for a scheduler that starts it or a trainer
that runs it."""

from __future__ import annotations

from shardwise.documents import Export, Plan
from shardwise.errors import BadInput
from shardwise.schedulers.formats import FORMS, export_plan
from shardwise.trainers.formats import TRAINERS, write_for


def exported(plan: Plan, form: str | None, trainer: str | None, gpu_type: str | None) -> Export:
    """Returns a plan or a pipeline in a form of `PLAN_FORMS`, or for a trainer of `TRAINERS`.

    Raises `BadInput` that names `format`, `to` or `gpu_type`: for both or neither, unknown ones,
    and plans that cannot be said so.
    """
    if form is not None and trainer is None:
        text = export_plan(plan, form, gpu_type=gpu_type)
        return Export(plan.id, form, FORMS[form].media_type, text)
    if trainer is None or form is not None:
        raise BadInput("give one of format and to", field="to", expected="one of them")
    if gpu_type is not None:
        raise BadInput(
            "applies only to a scheduler's format", field="gpu_type", expected="none with to"
        )
    written, known = write_for(plan, trainer), TRAINERS[trainer]
    return Export(plan.id, trainer, known.media_type, written.text, known.filename, written.unsaid)
