"""Finding a profile: a built-in name, a file, or `NAME*NODES`."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

from shardwise import validation
from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.hardware.builtin import list_builtin, profile_of_file
from shardwise.hardware.document import hardware_from_document
from shardwise.hardware.gpus import gpu_within
from shardwise.hardware.hardware import SCHEMA, Hardware
from shardwise.hardware.machines import by_instance, machines
from shardwise.hardware.new_profile import new_profile
from shardwise.near import did_you_mean, near

SHORT_NAMES = {"a100": "dgx-a100-80gb", "b200": "b200-8", "h100": "dgx-h100", "h200": "h200-8"}
"""GPUs whose name alone is that of the built-in profile of their nodes of eight."""


def builtin_name(name: str) -> str | None:
    """Returns the built-in profile that a name, a GPU's short one or what a cloud calls a machine
    stands for; None if none."""
    name = SHORT_NAMES.get(name.lower()) or by_instance().get(name.lower()) or name
    return name if name in list_builtin() else None


def load_hardware(spec: str) -> Hardware:
    """Returns the profile of `--hardware`: a built-in name, a GPU's short one, what a cloud calls a
    machine, or a profile file, each with `*NODES` or without.

    Raises `BadInput` for an unknown name, a file that is refused, a node count that is out of range
    or that of a profile with groups.
    """
    name, star, count = spec.rpartition("*")
    if not star:
        return _one(spec)
    hardware = _one(name)
    hardware.require_no_groups("hardware")
    if not count.isdigit() or not 1 <= int(count) <= hardware.most_nodes:
        raise BadInput(
            f"{count!r} nodes",
            field="hardware",
            expected=f"NAME*NODES with 1 to {hardware.most_nodes} nodes",
        )
    return hardware.with_nodes(int(count))


def unknown_hardware(spec: str, other: str) -> BadInput:
    """Returns the error for a name that no built-in profile has: what is near, and how to make a
    profile if the name has a GPU's in it.

    `other` is what is taken besides names, such as `a profile file`.
    """
    close = near(spec, list_builtin())
    gpu = gpu_within(spec)
    names = (
        "a name of 'shardwise hardware list'" if close else f"one of {', '.join(list_builtin())}"
    )
    made = "" if gpu is None else f", or what 'shardwise hardware new --gpu {gpu.name}' writes"
    return BadInput(
        f"unknown hardware {spec[:100]!r}{did_you_mean(close)}",
        field="hardware",
        expected=f"{other}, {names}{made}" if made else f"{other} or {names}",
    )


@cache
def _builtin(name: str) -> Hardware:
    return _machine(name) if name in machines() else profile_of_file(name)


def _machine(name: str) -> Hardware:
    """Returns the profile of a row of the table of machines, built of other profiles."""
    row = machines()[name]
    if not row.is_rented:
        return replace(new_profile(row.gpu), name=name)
    like = load_hardware(row.like)
    stated = like.with_network(row.network_gbit_per_s * 1e9 / 8)
    sources = {figure: source for figure, source in like.sources.items() if not _of_network(figure)}
    sources["levels.between"] = (
        f"{row.source}, {row.date}; its latency and what collectives reach of it are assumed, as "
        f"in {row.like}"
    )
    memory = like.host_memory
    if memory is not None and row.host_memory_gib:
        memory = replace(memory, memory_bytes=row.host_memory_gib * 2**30)
        sources["host_memory"] = (
            f"the cloud's page on {row.instance}, 2026-11; bandwidth and links as in {row.like}"
        )
    return replace(
        stated,
        host_memory=memory if row.host_memory_gib else None,
        name=name,
        provenance=f"{row.instance}: as {row.like}, with the network that the cloud states; "
        f"{like.provenance}",
        sources=sources,
    )


def _of_network(figure: str) -> bool:
    return figure in ("levels.between", "levels.between.rails")


def _one(spec: str) -> Hardware:
    known = builtin_name(spec)
    if known is not None:
        return _builtin(known)
    if not (os.sep in spec or spec.endswith(".json")):
        raise unknown_hardware(spec, "a profile file")
    text = read_bounded(spec, f"a {SCHEMA} file")
    document = validation.decode_any(text, file=spec)
    validation.require_unique_members(text, file=spec)
    return hardware_from_document(document, spec)
