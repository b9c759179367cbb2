"""Graphs: content stored once, owned per tenant."""

from __future__ import annotations

import zlib
from typing import Any

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from service.base.problems import Problem, not_found
from service.cluster.gangs import LAUNCH_ACTIVE
from service.store.blobs import drop_blobs, keep_blob
from service.store.database import now
from service.store.insert import inserted
from service.store.launch_tables import Launch
from service.store.pages import Place, after
from service.store.quotas import Room
from service.store.tables import ACTIVE, CurvePoint, GraphBlob, Job, OwnedGraph, Result, Watch


def add_graph(
    session: Session,
    tenant: str,
    graph_id: str,
    canonical: bytes,
    summary: dict[str, Any],
    room: Room | None = None,
) -> OwnedGraph | None:
    """Stores a graph for a tenant. Returns its row; None if the tenant has it already.

    Raises a problem `quota` if it does not fit into `room`.
    """
    if session.get(OwnedGraph, (tenant, graph_id)) is not None:
        return None
    if room is not None:
        room.require(session, max_graphs=1, max_stored_bytes=len(canonical))
    keep_blob(session, GraphBlob, graph_id, canonical)
    return inserted(
        session,
        OwnedGraph,
        tenant_id=tenant,
        graph_id=graph_id,
        created_at=now(),
        name=summary["name"],
        size_bytes=len(canonical),
        summary=summary,
    )


def owned_graph(session: Session, tenant: str, graph_id: str) -> OwnedGraph:
    """Returns the tenant's graph. Raises a problem `not-found` if it has none of that id."""
    row = session.get(OwnedGraph, (tenant, graph_id))
    if row is None:
        raise not_found("graph", graph_id)
    return row


def graph_content(session: Session, graph_id: str) -> bytes | None:
    """Returns the canonical JSON; None if no tenant owns the graph any more."""
    content = session.scalar(select(GraphBlob.content).where(GraphBlob.id == graph_id))
    return None if content is None else zlib.decompress(content)


def list_graphs(session: Session, tenant: str, place: Place | None, limit: int) -> list[OwnedGraph]:
    """Returns the tenant's graphs, newest first."""
    query = select(OwnedGraph).where(OwnedGraph.tenant_id == tenant)
    return list(
        session.scalars(after(query, OwnedGraph.created_at, OwnedGraph.graph_id, place, limit))
    )


def delete_graph(session: Session, tenant: str, graph_id: str) -> None:
    """Deletes a tenant's graph with all answers about it.

    Raises a problem `in-use` while a job on it is queued or running, or a launch of it runs.
    """
    owned = owned_graph(session, tenant, graph_id)
    mine = (Job.tenant_id == tenant, Job.graph_id == graph_id)
    if session.scalar(select(Job.id).where(*mine, Job.state.in_(ACTIVE)).limit(1)):
        raise Problem("in-use", f"a job on {graph_id} is queued or running: cancel it first")
    launched = (Launch.tenant_id == tenant, Launch.graph_id == graph_id)
    if session.scalar(select(Launch.id).where(*launched, Launch.state.in_(LAUNCH_ACTIVE)).limit(1)):
        raise Problem("in-use", f"a launch of {graph_id} has not ended: stop it first")
    session.execute(delete(Watch).where(Watch.tenant_id == tenant, Watch.graph_id == graph_id))
    session.execute(delete(Job).where(*mine))
    for table in (Result, CurvePoint):
        session.execute(delete(table).where(table.tenant_id == tenant, table.graph_id == graph_id))
    session.delete(owned)
    session.flush()
    drop_blobs(session, GraphBlob, [graph_id], exists().where(OwnedGraph.graph_id == GraphBlob.id))
