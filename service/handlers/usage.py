"""A tenant's use of its quotas."""

from __future__ import annotations

from service.edge.context import RequestContext, Result
from service.store.database import clock
from service.store.ids import iso
from service.store.quotas import DAY_S, QUOTAS

SCHEMA = "shardwise.usage/1"


def get_usage(context: RequestContext) -> Result:
    """Returns each quota by its setting's name, and when the day of `max_bytes_per_day` ends."""
    room = context.room
    quotas = {
        name: {
            "used": room.used(context.session, name),
            "limit": room.limit(name),
            "what": quota.what,
        }
        for name, quota in QUOTAS.items()
    }
    days = clock(context.session) // DAY_S
    return Result(
        document={"schema": SCHEMA, "quotas": quotas, "day_ends_at": iso((days + 1) * DAY_S)}
    )
