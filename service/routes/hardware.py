"""/v1/hardware."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.http import read, write
from service.handlers import hardware as handlers
from service.openapi import document as doc

router = APIRouter(prefix="/v1/hardware", tags=["hardware"])


@router.post("", **doc.post_hardware)
async def post_hardware(request: Request) -> Response:
    """Upload a profile. The same profile has the same id."""
    parse = handlers.parse_hardware
    return await write(request, handlers.post_hardware, "hardware.create", parse=parse)


@router.get("", **doc.list_hardware)
async def get_hardware_list(request: Request) -> Response:
    """The uploaded profiles, newest first, and the built-in ones."""
    return await read(request, handlers.get_hardware_list)


@router.get("/{hardware_id}", **doc.get_hardware)
async def get_hardware(request: Request, hardware_id: str) -> Response:
    """One profile, by id or built-in name, as its `shardwise.hardware/1` document."""
    return await read(request, partial(handlers.get_hardware, spec=hardware_id))


@router.delete("/{hardware_id}", **doc.delete_hardware)
async def delete_hardware(request: Request, hardware_id: str) -> Response:
    """Delete an uploaded profile."""
    return await write(
        request, partial(handlers.remove_hardware, hardware_id=hardware_id), "hardware.delete"
    )
