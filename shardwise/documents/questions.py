"""The questions: the bodies of the requests that a service takes.

The client writes them, the service reads them. `options` are fields of `Options` by name; `graph`
is an id or `shipped:NAME`, `hardware` an id or a built-in name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec.structs import fields

SearchOptions = Annotated[
    dict[str, Any],
    msgspec.Meta(
        description="Fields of `shardwise.advise.Options` by name. Left out, the time of the "
        "replayed step is searched (`overlap`), with recomputation where it pays (`recompute`: "
        "null) and every divisor of the batch as number of micro-batches (`micro_batches`: []); "
        "with `overlap` false those two defaults are `never` and [1]."
    ),
]
"""The options of a search, as requests have them."""


class FrontierRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/frontiers`."""

    graph: str
    hardware: str
    gpus: int
    options: SearchOptions = {}
    priority: int = 0


class CurveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`GET /v1/curves` as an object."""

    graph: str
    hardware: str
    max_gpus: int
    options: SearchOptions = {}
    priority: int = 0


class PlanRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/plans`. `point`: the `plan_id` of a frontier's point, instead of an objective."""

    graph: str
    hardware: str
    gpus: int
    objective: str = "mini-time"
    point: str | None = None
    options: SearchOptions = {}
    priority: int = 0


class QuoteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/quotes`. `offers_csv`: a table with the SkyPilot catalog's columns."""

    graph: str
    offers_csv: str | None = None
    steps: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    max_instances: int = 16
    options: SearchOptions = {}
    priority: int = 0


QUESTIONS: Mapping[str, type[msgspec.Struct]] = {
    "frontier": FrontierRequest,
    "curve": CurveRequest,
    "plan": PlanRequest,
    "quote": QuoteRequest,
}
"""By the kind of the answer."""


def request_body(request: msgspec.Struct) -> dict[str, Any]:
    """Returns a request as JSON values, without members that have their default.

    A service of an earlier release, which does not know all members, then accepts it.
    """
    members: dict[str, Any] = msgspec.to_builtins(request)
    for item in fields(request):
        factory = item.default_factory
        default = item.default if factory is msgspec.NODEFAULT else factory()
        if members[item.encode_name] == default:
            del members[item.encode_name]
    return members
