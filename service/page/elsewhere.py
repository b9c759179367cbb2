"""How a job's question is asked elsewhere, with the files that programs need for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import Request

from service.base.problems import not_found
from service.edge.context import RequestContext, Result
from service.edge.state import state_of
from service.handlers.graphs import SHIPPED, shipped_id
from service.page.inner import rights_of
from service.page.snippets import (
    GRAPH_FILE,
    HARDWARE_FILE,
    MOST_INLINE,
    OFFERS_FILE,
    QUESTION_FILE,
    Asked,
    body_text,
    command_of,
    curl_of,
    python_of,
)
from service.questions.search_options import options_document
from service.store.graphs import graph_content
from service.store.jobs import find_job
from service.store.question_blobs import whole_question
from service.store.tables import HardwareProfile, Job, OwnedGraph
from shardwise import validation
from shardwise.answers import Options
from shardwise.capture.shipped import shipped_names
from shardwise.client.questions import offers_csv
from shardwise.documents import QUESTIONS, request_body
from shardwise.hardware import (
    Offer,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
    read_offers,
)
from shardwise.pipeline.asked import DEFAULT_SCHEDULES

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}")
_MEMBERS = {
    "frontier": ("gpus", "stages", "schedules"),
    "curve": ("max_gpus", "counts", "bundles", "space", "stages", "schedules"),
    "plan": ("gpus", "objective", "point", "order", "space", "stages", "schedules"),
    "pricing": ("gpus",),
    "compare": ("gpus", "proposals", "seed", "stages", "schedules"),
    "quote": (
        "steps", "deadline_s", "budget_usd", "max_instances", "combine", "prices", "stages",
        "schedules",
    ),
}  # fmt: skip
"""Members of each kind of question besides the graph, the hardware and options."""


def elsewhere(context: RequestContext, job_id: str, server: str) -> Result:
    """Returns the texts to copy, and the names of the files that they need."""
    job = find_job(context.session, context.tenant, job_id[:80])
    asked, files = _asked(context, job)
    key = not rights_of(context.principal).open
    texts = {
        "command": command_of(asked),
        "python": python_of(asked, server, key=key),
        "curl": curl_of(asked, server, key=key),
    }
    return Result(document={**texts, "files": list(files), "key": key})


def file_of_question(context: RequestContext, job_id: str, name: str) -> Result:
    """Returns one of the files that `elsewhere` names. Raises a problem `not-found` for others."""
    job = find_job(context.session, context.tenant, job_id[:80])
    _, files = _asked(context, job)
    if name not in files:
        raise not_found("file", name[:80])
    content = files[name]
    if content is None:
        content = graph_content(context.session, job.graph_id)
        if content is None:
            raise not_found("graph", job.graph_id)
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    return Result(content=content, headers=headers, media_type="application/octet-stream")


def server_of(request: Request) -> str:
    """Returns the address of this service as its user knows it, without a slash at the end."""
    public = state_of(request).settings.public_url
    return (public or str(request.base_url)).rstrip("/")


def _asked(context: RequestContext, job: Job) -> tuple[Asked, dict[str, bytes | None]]:
    """Returns a job's question, and the files that it needs by name; None is the graph's."""
    question = whole_question(context.session, job)
    files: dict[str, bytes | None] = {}
    graph = _shipped_graph(context, job)
    if graph is None:
        files[GRAPH_FILE] = None
    members = _members(job.kind, question)
    body: dict[str, Any] = {"graph": graph or job.graph_id, **members}
    asked = Asked(job.kind, graph or GRAPH_FILE, body, members=members, options=_options(question))
    if "hardware" in question:
        asked = _with_hardware(context, asked, body, question["hardware"], files)
    if job.kind == "quote":
        asked = _with_offers(asked, body, question["offers"], files)
    if job.kind == "pricing":
        name = question["file"] if _PLAIN_NAME.fullmatch(question["file"]) else "configuration"
        files[name] = question["configuration"].encode()
        body |= {"configuration": question["configuration"], "file": question["file"]}
        asked = replace(asked, configuration=name)
    body["options"] = dict(asked.options)
    shape = QUESTIONS[job.kind]
    asked = replace(asked, body=request_body(validation.convert(body, shape)))
    if len(body_text(asked)) > MOST_INLINE:
        files[QUESTION_FILE] = body_text(asked).encode()
    return asked, files


def _members(kind: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the question's members that are not defaults."""
    members = {name: question[name] for name in _MEMBERS[kind] if question.get(name)}
    if question.get("objective") == "point":
        del members["objective"]
    if members.get("objective") == "mini-time":
        del members["objective"]
    if members.get("schedules") == list(DEFAULT_SCHEDULES):
        del members["schedules"]
    if members.get("max_instances") == 16:
        del members["max_instances"]
    return members


def _options(question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are not the defaults, of `step` the members."""
    usual = msgspec.json.decode(msgspec.json.encode(options_document(Options())))
    chosen = {
        name: value
        for name, value in question["options"].items()
        if name in usual and value != usual[name]
    }
    if "step" in chosen:
        step = {key: one for key, one in chosen["step"].items() if one != usual["step"].get(key)}
        chosen["step"] = step
    return chosen


def _shipped_graph(context: RequestContext, job: Job) -> str | None:
    """Returns `shipped:NAME` if the job's graph is that one."""
    owned = context.session.get(OwnedGraph, (context.tenant, job.graph_id))
    if owned is None or owned.name not in shipped_names():
        return None
    return f"{SHIPPED}{owned.name}" if shipped_id(owned.name) == job.graph_id else None


def _with_hardware(
    context: RequestContext,
    asked: Asked,
    body: dict[str, Any],
    document: dict[str, Any],
    files: dict[str, bytes | None],
) -> Asked:
    """Returns the question with its profile, as the programs and the service name it."""
    hardware = hardware_from_document(document)
    nodes = "" if hardware.nodes is None else f"*{hardware.nodes}"
    base = hardware if hardware.nodes is None else replace(hardware, nodes=None)
    if hardware.name in list_builtin() and load_hardware(hardware.name).id == base.id:
        body["hardware"] = f"{hardware.name}{nodes}"
        return replace(asked, hardware=body["hardware"])
    # In the file the number of nodes is one of its members.
    files[HARDWARE_FILE] = msgspec.json.format(
        msgspec.json.encode(hardware_document(hardware)), indent=1
    )
    known = context.session.get(HardwareProfile, (context.tenant, base.id)) is not None
    body["hardware"] = f"{base.id}{nodes}" if known else hardware.id
    uploads = (
        not known and context.session.get(HardwareProfile, (context.tenant, hardware.id)) is None
    )
    return replace(asked, hardware=HARDWARE_FILE, uploads=uploads)


def _with_offers(
    asked: Asked, body: dict[str, Any], documents: list[Any], files: dict[str, bytes | None]
) -> Asked:
    """Returns the question with the offers of its own, if it has other than the shipped ones."""
    offers = [validation.convert(document, Offer) for document in documents]
    if offers == read_offers():
        return asked
    text = offers_csv(offers) or ""
    files[OFFERS_FILE] = text.encode()
    body["offers_csv"] = text
    return replace(asked, offers=OFFERS_FILE)
