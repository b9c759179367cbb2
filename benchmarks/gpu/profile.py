"""The device's profile: a built-in one, or one measured here, with what this run measured."""

from __future__ import annotations

import datetime
from dataclasses import replace
from statistics import median

import msgspec

from shardwise.hardware import Hardware, hardware_from_document, load_hardware
from shardwise.hardware.host import EAGER
from shardwise.measure.local import run_ranks

from .parts import Outcome, Row
from .setting import built_in

LIMIT_S = 30.0


def base_profile(machine: Row, device: str) -> Hardware:
    """Returns the built-in profile of this GPU, else what `shardwise measure` makes of one rank.

    Raises what measuring does.
    """
    on_cpu = device == "cpu"
    name = None if on_cpu else built_in(machine["name"], machine["memory_bytes"])
    if name is not None:
        return load_hardware(name)
    arguments = ["--overlap", "--allow-busy", "--name", "here", "--time-limit", str(LIMIT_S)]
    arguments += ["--backend", "gloo"] if on_cpu else []
    document = run_ranks(1, arguments, LIMIT_S, lambda line: None)
    return hardware_from_document(msgspec.json.decode(document))


def with_measured(hardware: Hardware, outcome: Outcome, machine: Row, device: str) -> Hardware:
    """Returns the profile with what a part has measured: operator tables, the clock under load, the
    host's time for an operator (a CPU's is part of its operators')."""
    rows, sources = outcome.rows, dict(hardware.sources)
    where = f"measured on {datetime.datetime.now(tz=datetime.UTC).date()} on {machine['name']}"
    if tables := rows.pop("tables", []):
        with_tables = hardware_from_document(tables[-1])
        sources["operators"] = with_tables.sources["operators"]
        hardware = replace(hardware, operators=with_tables.operators)
    for row in rows.get("sustained", []):
        first, *others = hardware.devices
        clock = replace(first, sustained_clock=round(row["sustained_clock"], 4))
        hardware = replace(hardware, devices=(clock, *others))
        sources["devices.sustained_clock"] = (
            f"{where}: the rate of a product of {row['side']} x {row['side']} x {row['side']} "
            "under load over that in a short burst"
        )
    if device != "cpu" and (floors := rows.get("floor")):
        host = hardware.host or EAGER  # one device has no collectives to measure
        operator_s = median(row["operator_s"] for row in floors)
        hardware = replace(hardware, host=replace(host, operator_s=operator_s))
        sources["host"] = (
            f"operator_s {where}: the median of {len(floors)} stacks of small layers; "
            "collective_s as in the built-in profiles, for one GPU has no collectives"
        )
    return replace(hardware, sources=sources)
