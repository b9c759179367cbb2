"""`/usage`: what the tenant has used of its quotas."""

from __future__ import annotations

from fastapi import Request, Response

from service.handlers import usage as handlers
from service.page.inner import read
from service.page.render import respond


async def show(request: Request) -> Response:
    """Returns each quota with its use and its limit, the fullest first."""
    usage = await read(request, handlers.get_usage)
    rows = [
        {
            "name": name,
            **quota,
            "share": quota["used"] / quota["limit"] if quota["limit"] else 1.0,
            "bytes": "bytes" in name,
        }
        for name, quota in usage["quotas"].items()
    ]
    rows.sort(key=lambda row: -row["share"])
    return await respond(request, "usage.html", rows=rows, day_ends_at=usage["day_ends_at"])
