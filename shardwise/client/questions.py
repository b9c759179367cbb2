"""Questions as the service takes them, from the arguments of the library's functions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from msgspec import to_builtins

from shardwise.answers import Options
from shardwise.client.uploads import GraphSource, HardwareSource, graph_name, hardware_name
from shardwise.documents import QUESTIONS, Curve, request_body
from shardwise.errors import BadInput
from shardwise.hardware import Devices, Offer
from shardwise.hardware.offers import UNDATED
from shardwise.pipeline.asked import ANY, AUTO, NO_STAGES

THREADS, POLICY, ASSUMED = "threads", "policy", "assumed"
OFFER_COLUMNS = (
    "Provider", "InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice",
    "Region", "PriceAsOf", "PriceSource", "Hardware", "NetworkGbps",
)  # fmt: skip


def options_document(options: Options | None) -> dict[str, Any]:
    """Returns the options that are not the defaults, by name; pins as rules.

    Raises `BadInput` for `threads`, which the service's settings decide, and for `policy`.
    """
    given, default = options or Options(), Options()
    document: dict[str, Any] = {}
    for item in fields(Options):
        value = getattr(given, item.name)
        if value == getattr(default, item.name) or item.name == ASSUMED:
            continue
        if item.name == POLICY:
            raise BadInput("cannot be sent to a server", field=POLICY, expected="no policy file")
        if item.name == THREADS:
            raise BadInput("the service decides", field=THREADS, expected="no value")
        if item.name == "pins":
            value = [str(pin) for pin in value]
        elif is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        document[item.name] = list(value) if isinstance(value, tuple) else value
    return document


def options_query(options: Options | None) -> list[tuple[str, str]]:
    """Returns the options as parameters of a query."""
    query: list[tuple[str, str]] = []
    for name, value in options_document(options).items():
        if name == "pins":
            query += [(name, rule) for rule in value]
        elif isinstance(value, list):
            query.append((name, ",".join(str(item) for item in value)))
        elif isinstance(value, str):
            query.append((name, value))
        else:
            query.append((name, json.dumps(value)))
    return query


def devices_text(gpus: int | str | Devices) -> int | str:
    """Returns devices as a request has them: a number, or the text of groups."""
    return gpus.asked if isinstance(gpus, Devices) else gpus


def staged(stages: Sequence[int] | None, schedules: Sequence[str] | None) -> dict[str, Any]:
    """Returns the members of a question that asks for these numbers of pipeline stages, None for
    all of them; none where it asks for no pipeline. Schedules of None are left out."""
    if stages is not None and set(stages) == set(NO_STAGES):
        return {}
    counts = AUTO if stages is None else sorted(set(stages))
    return {"stages": counts, **({} if schedules is None else {"schedules": list(schedules)})}


def curve_members(
    counts: Sequence[int], space: str, stages: Sequence[int] | None, schedules: Sequence[str]
) -> dict[str, Any]:
    """Returns the members of a curve's question besides its largest count and its bundles."""
    members = staged(stages, schedules)
    if counts:
        members["counts"] = list(counts)
    if space != ANY:
        members["space"] = space
    return members


def question(
    kind: str,
    graph: GraphSource,
    hardware: HardwareSource | None,
    options: Options | None,
    **more: Any,
) -> dict[str, Any]:
    """Returns the body of a question of a kind; `more` are members of its request."""
    if hardware is not None:
        more["hardware"] = hardware_name(hardware)
    request = QUESTIONS[kind](graph=graph_name(graph), options=options_document(options), **more)
    return request_body(request)


def curve_query(
    graph: GraphSource,
    hardware: HardwareSource,
    max_gpus: int | None,
    options: Options | None,
    priority: int = 0,
    bundles: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> tuple[tuple[str, str], ...]:
    """Returns the query of `GET /v1/curves`; `more` are further members of the question.

    A priority of 0 is left out, since older services do not know it.
    """
    asked = [
        (name, value if isinstance(value, str) else ",".join(map(str, value)))
        for name, value in (more or {}).items()
    ]
    return (
        ("graph", graph_name(graph)),
        ("hardware", hardware_name(hardware)),
        *([("max_gpus", str(max_gpus))] if max_gpus is not None else []),
        *(("bundles", str(bundle)) for bundle in bundles),
        *asked,
        *options_query(options),
        *([("priority", str(priority))] if priority else []),
    )


def job_to_share(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one job of an allocation: each member may be the library's object."""
    document = dict(job)
    if isinstance(document.get("graph"), GraphSource):
        document["graph"] = graph_name(document["graph"])
    if isinstance(document.get("hardware"), HardwareSource):
        document["hardware"] = hardware_name(document["hardware"])
    if isinstance(document.get("curve"), Curve):
        document["curve"] = to_builtins(document["curve"])
    if isinstance(document.get("options"), Options):
        document["options"] = options_document(document["options"])
    return document


def offers_csv(offers: Sequence[Offer] | None) -> str | None:
    """Returns offers as CSV that reads back as the same offers; None: the service's own."""
    if offers is None:
        return None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(OFFER_COLUMNS)
    for offer in offers:
        price = repr(offer.usd_per_hour)
        writer.writerow(
            (
                offer.provider,
                offer.instance_type,
                offer.gpu_kind,
                offer.gpus_per_instance,
                "" if offer.spot else price,
                price if offer.spot else "",
                offer.region,
                "" if offer.price_as_of == UNDATED else offer.price_as_of,
                offer.price_source,
                offer.hardware or "",
                "" if offer.network_gbps is None else repr(offer.network_gbps),
            )
        )
    return text.getvalue()
