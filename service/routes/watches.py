"""/v1/watches."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.http import read, write
from service.handlers import watches as handlers
from service.openapi import document as doc

router = APIRouter(prefix="/v1/watches", tags=["watches"])


@router.post("", **doc.post_watch)
async def post_watch(request: Request) -> Response:
    """Watch a curve: its points become metrics under a name of yours."""
    return await write(request, handlers.post_watch, "watch.create", parse=handlers.parse_watch)


@router.get("", **doc.list_watches)
async def get_watches(request: Request) -> Response:
    """All watches."""
    return await read(request, handlers.get_watches)


@router.get("/metrics", **doc.watch_metrics)
async def get_watch_metrics(request: Request) -> Response:
    """The watched curves in Prometheus' text format."""
    return await read(request, handlers.get_watch_metrics)


@router.get("/{watch}", **doc.get_watch)
async def get_watch(request: Request, watch: str) -> Response:
    """One watch."""
    return await read(request, partial(handlers.get_watch, name=watch))


@router.delete("/{watch}", **doc.delete_watch)
async def delete_watch(request: Request, watch: str) -> Response:
    """Stop watching the curve."""
    return await write(request, partial(handlers.remove_watch, name=watch), "watch.delete")
