"""/v1/allocations."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service import openapi as doc
from service.edge import change_unless
from service.handlers import allocations as handlers

router = APIRouter(prefix="/v1/allocations", tags=["allocations"])


@router.post("", **doc.post_allocation)
async def post_allocation(request: Request) -> Response:
    """How to share GPUs among jobs: 200 when every curve is known, else 202: ask again."""
    return await change_unless(
        request,
        handlers.known_allocation,
        handlers.start_allocation,
        "allocations.create",
        parse=handlers.parse_allocation,
    )
