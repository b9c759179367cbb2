"""/v1/graphs."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.http import read, write
from service.handlers import graphs as handlers
from service.openapi import document as doc

router = APIRouter(prefix="/v1/graphs", tags=["graphs"])


@router.post("", **doc.post_graph)
async def post_graph(request: Request) -> Response:
    """Upload a graph: JSON (may be gzipped) or an ONNX file. The same graph has the same id."""
    parse = handlers.parse_upload
    return await write(request, handlers.post_graph, "graphs.create", parse=parse, upload=True)


@router.get("", **doc.list_graphs)
async def get_graphs(request: Request) -> Response:
    """The graphs, newest first."""
    return await read(request, handlers.get_graphs)


@router.get("/{graph_id}", **doc.get_graph)
async def get_graph(request: Request, graph_id: str) -> Response:
    """One graph: its name and sizes."""
    return await read(request, partial(handlers.get_graph, graph_id=graph_id))


@router.get("/{graph_id}/document", **doc.get_graph_document)
async def get_graph_document(request: Request, graph_id: str) -> Response:
    """One graph as its `shardwise.graph/1` document."""
    return await read(request, partial(handlers.get_graph_document, graph_id=graph_id))


@router.delete("/{graph_id}", **doc.delete_graph)
async def delete_graph(request: Request, graph_id: str) -> Response:
    """Delete a graph with all answers about it."""
    return await write(request, partial(handlers.remove_graph, graph_id=graph_id), "graphs.delete")
