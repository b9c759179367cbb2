"""What a tenant has used of its quotas."""

from __future__ import annotations

from service.edge import Answer, Call
from service.store.database import clock
from service.store.ids import iso
from service.store.quotas import DAY_S, QUOTAS

SCHEMA = "shardwise.usage/1"


def get_usage(call: Call) -> Answer:
    """Each quota by the name of its setting, and when the day of `max_bytes_per_day` ends."""
    room = call.room
    quotas = {
        name: {
            "used": room.used(call.session, name),
            "limit": room.limit(name),
            "what": quota.what,
        }
        for name, quota in QUOTAS.items()
    }
    days = clock(call.session) // DAY_S
    return Answer(
        document={"schema": SCHEMA, "quotas": quotas, "day_ends_at": iso((days + 1) * DAY_S)}
    )
