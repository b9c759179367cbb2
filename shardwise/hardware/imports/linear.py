"""HeteroG-style linear models of links, time = a · size + b (HeteroG §3.3, Profiler), as JSON.

    {"links": [{"from": "/job:worker/task:0/device:GPU:0", "to": "…/task:1/device:GPU:0",
                "seconds_per_byte": 9e-11, "seconds": 2e-5}, …],
     "collectives": [{"operation": "all_reduce", "devices": ["…", "…"],
                      "seconds_per_byte": 1e-10, "seconds": 4e-5}]}

Devices are named as TensorFlow does or `host:number`; what precedes the device is the node.
HeteroG's own program keeps its models in Python pickles, which are programs: none is ever read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from shardwise import validation
from shardwise.errors import BadInput
from shardwise.hardware.bandwidth import OPERATIONS
from shardwise.hardware.hardware import CollectiveTable, Hardware
from shardwise.hardware.levels import Level

SIZES = tuple(2.0**i for i in range(10, 31))
RULE = "a linear model of {0}, time = a size + b"


class _Link(msgspec.Struct, rename={"source": "from", "target": "to"}):
    source: str
    target: str
    seconds_per_byte: float
    seconds: float


class _Collective(msgspec.Struct):
    operation: str
    devices: list[str]
    seconds_per_byte: float
    seconds: float


class _Models(msgspec.Struct):
    links: list[_Link]
    collectives: list[_Collective] = []


@dataclass(frozen=True)
class LinearModels:
    """Levels and tables; a level is None where no link of it was modelled."""

    inside: tuple[float, float] | None
    between: tuple[float, float] | None
    tables: tuple[CollectiveTable, ...]


def parse_linear(text: bytes, file: str) -> LinearModels:
    """Returns the slowest link of each level, and every collective; `BadInput` names the field."""
    models = validation.decode(text, _Models, file=file, expected="linear models")
    inside: list[tuple[float, float]] = []
    between: list[tuple[float, float]] = []
    for number, link in enumerate(models.links):
        where = f"links[{number}]"
        _check(link, file, where)
        if link.source == link.target:
            raise BadInput(
                f"from {link.source} to itself",
                file=file,
                field=where,
                expected="a link between two devices",
            )
        same = _node(link.source, file, where) == _node(link.target, file, where)
        (inside if same else between).append((link.seconds_per_byte, link.seconds))
    tables = [_table(c, file, f"collectives[{n}]") for n, c in enumerate(models.collectives)]
    slowest = [max(level) if level else None for level in (inside, between)]
    pairs = [
        _linear("send_receive", *group, model)
        for group, model in zip(((1, 2, True), (2, 1, False)), slowest, strict=True)
        if model is not None
    ]
    return LinearModels(slowest[0], slowest[1], (*tables, *pairs))


def with_levels(hardware: Hardware, models: LinearModels) -> Hardware:
    """Returns the base's levels with the modelled bandwidth and latency.

    A modelled bandwidth is reached in full: its efficiency is 1. Levels beyond that between nodes
    stay as they are.
    """

    def level(base: Level, model: tuple[float, float] | None) -> Level:
        if model is None:
            return base
        return replace(base, bandwidth_bytes_per_s=1 / model[0], latency_s=model[1], efficiency=1.0)

    inside, between, *further = hardware.levels
    levels = (level(inside, models.inside), level(between, models.between), *further)
    return replace(hardware, levels=levels)


def _check(model: _Link | _Collective, file: str, where: str) -> None:
    for name, least in (("seconds_per_byte", True), ("seconds", False)):
        value = getattr(model, name)
        if not np.isfinite(value) or value < 0 or (least and value == 0):
            expected = "a number above 0" if least else "a number from 0"
            raise BadInput(f"got {value}", file=file, field=f"{where}.{name}", expected=expected)


def _node(device: str, file: str, where: str) -> str:
    """Returns `/job:worker/task:0` of `/job:worker/task:0/device:GPU:1`, `host` of `host:1`."""
    node, separator, _ = device.rpartition("/device:")
    if not separator:
        node, separator, _ = device.rpartition(":")
    if not separator:
        raise BadInput(
            f"got {device!r}",
            file=file,
            field=where,
            expected="…/device:GPU:0 or host:0 as a device",
        )
    return node


def _table(model: _Collective, file: str, where: str) -> CollectiveTable:
    _check(model, file, where)
    if model.operation not in OPERATIONS:
        raise BadInput(
            f"unknown operation {model.operation!r}",
            file=file,
            field=f"{where}.operation",
            expected=f"one of {', '.join(OPERATIONS)}",
        )
    nodes = [_node(device, file, f"{where}.devices") for device in model.devices]
    counts = {nodes.count(node) for node in nodes}
    if len(set(model.devices)) != len(nodes) or len(nodes) < 2 or len(counts) != 1:
        raise BadInput(
            f"{len(nodes)} devices",
            file=file,
            field=f"{where}.devices",
            expected="two or more different ones, as many on every node",
        )
    ranks = counts.pop()
    across = len(set(nodes))
    consecutive = across == 1 or ranks > 1
    times = (model.seconds_per_byte, model.seconds)
    return _linear(model.operation, across, ranks, consecutive, times)


def _linear(
    operation: str, nodes: int, ranks: int, consecutive: bool, model: Sequence[float]
) -> CollectiveTable:
    slope, fixed = model
    return CollectiveTable(
        operation,
        nodes,
        ranks,
        consecutive,
        SIZES,
        tuple(slope * size + fixed for size in SIZES),
        siblings=1,
        derived=RULE.format("the slowest link" if operation == "send_receive" else "the group"),
    )
