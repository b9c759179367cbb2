"""/v1/accuracy, and the refits and versions of a profile."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.http import read, write
from service.handlers import accuracy as handlers
from service.openapi import launch_openapi as doc

router = APIRouter(prefix="/v1", tags=["accuracy"])


@router.get("/accuracy", **doc.get_accuracy)
async def get_accuracy(request: Request) -> Response:
    """How far predictions were off, by model and hardware."""
    return await read(request, handlers.get_accuracy)


@router.post("/hardware/{hardware_id}/refits", **doc.post_refit)
async def post_refit(request: Request, hardware_id: str) -> Response:
    """A new version of a profile, fitted to what was measured on it."""
    handler = partial(handlers.post_refit, hardware_id=hardware_id)
    return await write(request, handler, "hardware.refit", parse=handlers.parse_refit)


@router.get("/hardware/{hardware_id}/versions", **doc.get_versions)
async def get_versions(request: Request, hardware_id: str) -> Response:
    """The profiles of this one's name, newest first."""
    return await read(request, partial(handlers.get_versions, hardware_id=hardware_id))
