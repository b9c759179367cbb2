"""Graphs: uploaded, listed, shown, deleted."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from service.base.problems import Problem
from service.edge.context import RequestContext, Result
from service.questions.cost_model import MOST_DIMS
from service.questions.ingest import Upload, read_upload, upload_of
from service.store.graphs import (
    add_graph,
    delete_graph,
    graph_content,
    list_graphs,
    owned_graph,
)
from service.store.ids import iso
from service.store.pages import DEFAULT_LIMIT, MAX_LIMIT, Place, page, read_cursor
from service.store.summaries import clipped
from service.store.tables import OwnedGraph
from shardwise.capture.shipped import shipped_graph, shipped_names
from shardwise.errors import BadInput
from shardwise.graph import read_graph
from shardwise.step_sizes import AS_CAPTURED, StepSizes, split_sizes

SUMMARY_SCHEMA = "shardwise.graph-summary/1"
SHIPPED = "shipped:"
_MAX_SIZE = 2**32


def parse_upload(context: RequestContext) -> Upload:
    """Returns the graph of the body.

    Query: `batch` and `seq`, of a graph file with symbols too; `name` and named dimensions, for
    ONNX.
    """
    sizes = {}
    for key, value in context.query.items():
        if key == "name":
            continue
        if not (value.isascii() and value.isdigit() and 1 <= int(value[:12]) <= _MAX_SIZE):
            raise BadInput(f"{value[:40]!r} is not a size", field=key, expected="a size from 1")
        sizes[key] = int(value)
    name = context.query.get("name", "upload.onnx")[:200]
    return read_upload(
        context.body, context.content_type, name, sizes, context.settings, context.reading
    )


def post_graph(context: RequestContext) -> Result:
    """Returns 201 for a graph that is new to the tenant, 200 for one that it has."""
    new = keep_graph(context, context.parsed)
    row = new or owned_graph(context.session, context.tenant, context.parsed.id)
    return Result(
        200 if new is None else 201,
        graph_summary(row),
        headers={"Location": f"/v1/graphs/{row.graph_id}"},
        stores=new is not None,
    )


def keep_graph(context: RequestContext, upload: Upload) -> OwnedGraph | None:
    """Stores a graph if the tenant's quota allows. Returns its row; None if it was there."""
    return add_graph(
        context.session, context.tenant, upload.id, upload.canonical, upload.summary, context.room
    )


@lru_cache(maxsize=8)
def _shipped(name: str, sizes: StepSizes = AS_CAPTURED) -> Upload:
    return upload_of(read_graph(shipped_graph(name), sizes))


def shipped_id(name: str) -> str:
    """Returns the id of a shipped graph, which is read once in each process."""
    return _shipped(name).id


def resolve_graph(context: RequestContext, spec: str, *, keep: bool = True) -> str:
    """Returns the id of a tenant's graph.

    With `keep`, `shipped:NAME` and `preset:NAME` are stored when first named.
    """
    if context.state.presets.has(spec):
        upload = context.state.presets.upload(spec)
        if keep:
            keep_graph(context, upload)
        return upload.id
    plain, sizes = split_sizes(spec)
    if plain.startswith(SHIPPED):
        name = plain.removeprefix(SHIPPED)
        if name not in shipped_names():
            raise BadInput(
                f"no graph {name[:80]!r} is shipped",
                field="graph",
                expected=f"an id, or shipped: and one of {', '.join(shipped_names())}",
            )
        upload = _shipped(name, sizes)
        if keep:
            keep_graph(context, upload)
        return upload.id
    if sizes.asked:
        raise BadInput(
            "a stored graph has one batch and sequence length",
            field=", ".join(sizes.asked),
            expected="a preset, or the upload of a file with symbols to /v1/graphs?batch=…&seq=…",
        )
    return owned_graph(context.session, context.tenant, spec[:100]).graph_id


def learn_names(context: RequestContext, spec: str, options: Any) -> None:
    """Prepares the check of rules on operators when the question is stored.

    The check needs the graph's names, which are read once in a separate process: here, before the
    transaction begins, as the graph of a preset is. An unknown graph is left to the handler.
    """
    presets = context.state.presets
    preset = presets.upload(spec) if presets.has(spec) else None
    if not isinstance(options, dict) or not options.get("pins"):
        return
    digests = context.state.digests
    if preset is not None:
        digests.learn(preset.id, preset.canonical, context.settings)
        return
    plain, sizes = split_sizes(spec)
    if plain.startswith(SHIPPED):
        name = plain.removeprefix(SHIPPED)
        if name in shipped_names():
            shipped = _shipped(name, sizes)
            digests.learn(shipped.id, shipped.canonical, context.settings)
        return
    with context.state.database.read() as session:
        owned = session.get(OwnedGraph, (context.tenant, spec[:100]))
        if owned is None or digests.tried(owned.graph_id):
            return
        content = graph_content(session, owned.graph_id)
    if content is not None:
        digests.learn(owned.graph_id, content, context.settings)


def get_graphs(context: RequestContext) -> Result:
    """Returns a page of the tenant's graphs."""
    place, limit = paging(context)
    rows = list_graphs(context.session, context.tenant, place, limit)
    return Result(
        document=page(rows, limit, lambda row: (row.created_at, row.graph_id), graph_summary)
    )


def get_graph(context: RequestContext, graph_id: str) -> Result:
    """Returns a graph's list entry."""
    return Result(document=graph_summary(owned_graph(context.session, context.tenant, graph_id)))


def get_graph_document(context: RequestContext, graph_id: str) -> Result:
    """Returns the canonical `shardwise.graph/1` document."""
    owned_graph(context.session, context.tenant, graph_id)
    content = graph_content(context.session, graph_id)
    if content is None:
        raise Problem("not-found", f"there is no graph {graph_id}")
    return Result(content=content, headers={"ETag": f'"{graph_id}"'})


def remove_graph(context: RequestContext, graph_id: str) -> Result:
    """Returns 204; the tenant's answers about the graph are deleted too."""
    delete_graph(context.session, context.tenant, graph_id)
    context.state.answers.clear_tenant(context.tenant)
    return Result(204)


def graph_summary(row: OwnedGraph) -> dict[str, Any]:
    """Returns a graph as lists show it."""
    return {
        "schema": SUMMARY_SCHEMA,
        "id": row.graph_id,
        **{name: value for name, value in row.summary.items() if name != MOST_DIMS},
        "name": clipped(row.name),
        "size_bytes": row.size_bytes,
        "created_at": iso(row.created_at),
    }


def paging(context: RequestContext) -> tuple[Place | None, int]:
    """Returns the place and the limit of a list, from `cursor` and `limit` of the query."""
    text = context.query.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_LIMIT):
        raise BadInput(f"got {text[:40]!r}", field="limit", expected=f"1 to {MAX_LIMIT}")
    return read_cursor(context.query.get("cursor")), int(text)
