"""/v1/usage."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.edge.http import read
from service.handlers import usage as handlers
from service.openapi import document as doc

router = APIRouter(prefix="/v1/usage", tags=["usage"])


@router.get("", **doc.get_usage)
async def get_usage(request: Request) -> Response:
    """What the tenant has used of each quota, and the limits."""
    return await read(request, handlers.get_usage)
