"""Watched curves: a tenant marks a graph on a hardware profile, and the curve becomes metrics.

Names are the only label that a user chooses, and there are at most `max_watched` of them, so the
number of series in Prometheus stays bounded.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from service.base.json_body import read_object
from service.base.problems import Problem
from service.edge.context import RequestContext, Result
from service.edge.watch_metrics import Watched, watched_metrics
from service.handlers.graphs import learn_names, resolve_graph
from service.handlers.jobs import job_of, limits_of
from service.questions.question import Question, curve_question
from service.store.graphs import owned_graph
from service.store.hardware import find_hardware
from service.store.ids import iso
from service.store.jobs import job_document
from service.store.quotas import full
from service.store.tables import Watch
from service.store.tenants import lock_tenant
from service.store.watches import (
    add_watch,
    count_watches,
    delete_watch,
    find_watch,
    watches_of,
)
from shardwise.documents import CurveRequest
from shardwise.documents.questions import (
    MOST_BUNDLES,
    BundleText,
    Schedules,
    SearchOptions,
    StagesBeside,
)
from shardwise.errors import BadInput
from shardwise.hardware import Devices, Hardware
from shardwise.validation import convert

SCHEMA = "shardwise.watch/1"
MAX_GPUS = 256
"""Most GPU counts of a watched curve: each is a series of every family."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


class WatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/watches`: a curve up to `max_gpus`, or with groups of devices of `bundles`.

    With `stages` the metrics of a count are those of a pipeline where one is faster.
    """

    name: str
    graph: str
    hardware: str
    max_gpus: int | None = None
    options: SearchOptions = {}
    bundles: Annotated[list[BundleText], msgspec.Meta(max_length=MOST_BUNDLES)] = []
    stages: StagesBeside | None = None
    schedules: Schedules = []


def parse_watch(context: RequestContext) -> WatchRequest:
    """Returns the request of the body."""
    value = read_object(context.body, context.settings.max_json_depth)
    ask: WatchRequest = convert(value, WatchRequest)
    if not _NAME.fullmatch(ask.name):
        raise BadInput(
            f"got {ask.name[:60]!r}",
            field="name",
            expected="1 to 40 of a-z, 0-9, '.', '_' and '-', a letter or digit first",
        )
    if ask.max_gpus is not None and ask.max_gpus > MAX_GPUS:
        raise BadInput(f"got {ask.max_gpus}", field="max_gpus", expected=f"at most {MAX_GPUS}")
    learn_names(context, ask.graph, ask.options)
    return ask


def post_watch(context: RequestContext) -> Result:
    """Returns 201 with the watch and the job of its curve; 200 if the watch exists already."""
    ask: WatchRequest = context.parsed
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph)
    curve = CurveRequest(
        graph,
        ask.hardware,
        ask.max_gpus,
        ask.options,
        bundles=ask.bundles,
        stages=ask.stages,
        schedules=ask.schedules,
    )
    question = curve_question(curve, graph, hardware, limits_of(context))
    headers = {"Location": f"/v1/watches/{ask.name}"}
    # Retention, which takes this lock too, either sees the watch or runs before it.
    lock_tenant(context.session, context.tenant)
    new = add_watch(
        context.session,
        context.tenant,
        ask.name,
        content_id=question.content_id,
        graph_id=graph,
        hardware=ask.hardware,
        **_counts(question, hardware),
    )
    if not new:
        known = find_watch(context.session, context.tenant, ask.name)
        if known.content_id != question.content_id:
            raise Problem("in-use", f"{ask.name} watches another curve: delete it first")
    elif (used := count_watches(context.session, context.tenant)) > context.room.limit(
        "max_watched"
    ):
        raise full("max_watched", used - 1, context.room.limit("max_watched"), 1)
    job, created = job_of(context, question)
    row = find_watch(context.session, context.tenant, ask.name)
    document = {**watch_document(row), "job": job_document(job)}
    return Result(
        201 if new else 200,
        document,
        headers=headers,
        ring=[job.id] if created else [],
        repeatable=True,
    )


def _counts(question: Question, hardware: Hardware) -> dict[str, Any]:
    """Returns the columns that say the counts or the bundles of a curve."""
    bundles = question.document.get("bundles")
    if bundles is None:
        return {"max_gpus": question.document["max_gpus"]}
    most = max(Devices.parse(text, hardware).gpus for text in bundles)
    return {"max_gpus": most, "bundles": bundles}


def get_watches(context: RequestContext) -> Result:
    """Returns all of the tenant's watches."""
    items = [watch_document(row) for row in watches_of(context.session, context.tenant)]
    return Result(document={"schema": "shardwise.page/1", "items": items, "next": None})


def get_watch(context: RequestContext, name: str) -> Result:
    """Returns one watch."""
    return Result(document=watch_document(find_watch(context.session, context.tenant, name[:80])))


def remove_watch(context: RequestContext, name: str) -> Result:
    """Returns 204; the watch is deleted."""
    delete_watch(context.session, context.tenant, name[:80])
    return Result(204)


def get_watch_metrics(context: RequestContext) -> Result:
    """Returns the tenant's watched curves in Prometheus' text form."""
    metrics = []
    for row in watches_of(context.session, context.tenant):
        graph = owned_graph(context.session, context.tenant, row.graph_id)
        try:
            hardware = find_hardware(context.session, context.tenant, row.hardware)
        except Problem:
            # Its profile was deleted: one watch less, and the others still have their series.
            continue
        metrics.append(Watched(row.name, graph.name, hardware, row.content_id))
    text = watched_metrics(context.session, context.tenant, metrics)
    return Result(content=text, media_type="text/plain; version=0.0.4")


def watch_document(row: Watch) -> dict[str, Any]:
    """Returns a watch as it is shown."""
    return {
        "schema": SCHEMA,
        "name": row.name,
        "graph": row.graph_id,
        "hardware": row.hardware,
        "max_gpus": row.max_gpus,
        "created_at": iso(row.created_at),
        **({} if row.bundles is None else {"bundles": row.bundles}),
    }
