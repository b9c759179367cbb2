"""/v1/allocations."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.edge.http import write_unless_cached
from service.handlers import allocations as handlers
from service.openapi import document as doc

router = APIRouter(prefix="/v1/allocations", tags=["allocations"])


@router.post("", **doc.post_allocation)
async def post_allocation(request: Request) -> Response:
    """How to share GPUs among jobs: 200 if every curve is known, else 202: ask again."""
    return await write_unless_cached(
        request,
        handlers.known_allocation,
        handlers.start_allocation,
        "allocations.create",
        parse=handlers.parse_allocation,
    )
