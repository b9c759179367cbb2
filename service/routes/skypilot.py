"""/v1/skypilot/policy: what SkyPilot's `admin_policy: http://…` calls."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.edge.http import write_and_wait
from service.edge.state import state_of
from service.handlers import skypilot as handlers
from service.openapi import document as doc

router = APIRouter(prefix="/v1/skypilot", tags=["skypilot"])


@router.post("/policy", **doc.post_policy)
async def post_policy(request: Request) -> Response:
    """The task with the resources that its graph needs; others unchanged; 400 rejects."""
    return await write_and_wait(
        request,
        handlers.known_policy,
        handlers.start_policy,
        handlers.late_policy,
        state_of(request).settings.policy_wait_s,
        "skypilot.policy",
        parse=handlers.parse_policy,
    )
