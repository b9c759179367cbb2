"""The hardware of a cluster: devices, link levels, measured tables; each figure has a source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadInput
from shardwise.hardware.operator_tables import OperatorTable, OperatorTableFile, operator_tables
from shardwise.hardware.operator_times import OperatorTimes

SCHEMA = "shardwise.hardware/1"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Device:
    """One kind of device; `count` of them in a node.

    `peak_flops_per_s` by dtype, dense. `compute_efficiency` and `memory_efficiency` are the
    stated fractions of the peaks that large kernels reach; `kernel_latency_s` is what any
    kernel takes at the least. `compute_efficiency_by_dtype` replaces `compute_efficiency` for the
    dtypes it names: vector units come nearer to their peak than matrix units.
    `fast_convolution_saving` is, by dtype, how many times fewer operations a 3 × 3 convolution of
    stride 1 takes with the library's fast algorithm (Lavin & Gray 2016); 1 where it names none.
    """

    kind: str
    count: int
    memory_bytes: float
    peak_flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    compute_efficiency: float
    memory_efficiency: float
    kernel_latency_s: float
    compute_efficiency_by_dtype: Mapping[str, float] = field(default_factory=dict)
    fast_convolution_saving: Mapping[str, float] = field(default_factory=dict)

    def peak(self, dtype: str) -> float:
        """Flops per second for operands of this dtype; what has no entry runs as float32."""
        return self.peak_flops_per_s.get(dtype, self.peak_flops_per_s["float32"])

    def efficiency(self, dtype: str) -> float:
        """The fraction of `peak(dtype)` that large kernels reach."""
        known = dtype if dtype in self.peak_flops_per_s else "float32"
        return self.compute_efficiency_by_dtype.get(known, self.compute_efficiency)

    def roofline_times(self, flops: Floats, moved_bytes: Floats, dtype: str) -> Floats:
        """Seconds of a kernel: the slower of computing and moving, not below the latency.

        max(flops / (peak · efficiency), bytes / (bandwidth · efficiency)) + latency
        (Williams et al. 2009). Arrays of equal shape.
        """
        computing = flops / (self.peak(dtype) * self.efficiency(dtype))
        moving = moved_bytes / (self.memory_bandwidth_bytes_per_s * self.memory_efficiency)
        return np.maximum(computing, moving) + self.kernel_latency_s


@dataclass(frozen=True)
class Level:
    """A level of links, innermost first.

    `bandwidth_bytes_per_s` is unidirectional: per device for the level inside a node, per node
    for the level between nodes, where all devices of the node share it. `efficiency` is the
    stated fraction that collectives reach; `latency_s` is that of one step.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float


@dataclass(frozen=True)
class CollectiveTable:
    """Measured times of one operation on one group shape; sizes ascend, in bytes; times in s."""

    operation: str
    nodes: int
    ranks_per_node: int
    consecutive: bool
    sizes_bytes: tuple[float, ...]
    times_s: tuple[float, ...]


@dataclass(frozen=True)
class Hardware:
    """A profile. `nodes` is fixed by `NAME*NODES`; otherwise any number up to the outer level's.

    `two_node_trees`: whether the communication library reduces over two nodes along a tree, which
    halves the bytes between them.
    """

    name: str
    provenance: str
    devices: tuple[Device, ...]
    levels: tuple[Level, ...]
    collectives: tuple[CollectiveTable, ...] = ()
    operators: tuple[OperatorTable, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    nodes: int | None = None
    two_node_trees: bool = True

    @property
    def per_node(self) -> int:
        """Devices in one node."""
        return self.devices[0].count

    @property
    def max_nodes(self) -> int:
        """The most nodes that there can be."""
        return self.nodes if self.nodes is not None else self.levels[-1].size

    @cached_property
    def id(self) -> str:
        """Content id of the profile."""
        content = msgspec.json.encode(hardware_document(self), order="sorted")
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    @cached_property
    def operator_times(self) -> OperatorTimes:
        """The measured times of operators on the first kind of device."""
        return OperatorTimes(self.operators, self.devices[0])

    def with_nodes(self, nodes: int) -> Hardware:
        """Exactly so many nodes."""
        return replace(self, nodes=nodes)

    def with_devices_per_node(self, count: int) -> Hardware:
        """The same devices and links with another number of devices in a node."""
        devices = tuple(replace(d, count=count) for d in self.devices)
        inner = replace(self.levels[0], size=count)
        return replace(
            self,
            name=f"{self.name}[{count}]",
            devices=devices,
            levels=(inner, *self.levels[1:]),
        )

    def with_network(self, bandwidth_bytes_per_s: float) -> Hardware:
        """The same nodes behind another network card (per node, unidirectional)."""
        outer = replace(self.levels[-1], bandwidth_bytes_per_s=bandwidth_bytes_per_s)
        gbps = bandwidth_bytes_per_s * 8 / 1e9
        return replace(self, name=f"{self.name}[{gbps:g}Gb/s]", levels=(*self.levels[:-1], outer))


def hardware_document(hardware: Hardware) -> dict[str, Any]:
    """The file form, `shardwise.hardware/1`."""
    document: dict[str, Any] = msgspec.to_builtins(
        {
            "schema": SCHEMA,
            "name": hardware.name,
            "provenance": hardware.provenance,
            "devices": hardware.devices,
            "levels": hardware.levels,
            "collectives": hardware.collectives,
            "operators": hardware.operators,
            "sources": hardware.sources,
            "two_node_trees": hardware.two_node_trees,
        }
    )
    if hardware.nodes is not None:
        document["nodes"] = hardware.nodes
    return document


class _DeviceFile(msgspec.Struct):
    kind: str
    count: int
    memory_bytes: float
    peak_flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    compute_efficiency: float
    memory_efficiency: float
    kernel_latency_s: float
    compute_efficiency_by_dtype: dict[str, float] = {}
    fast_convolution_saving: dict[str, float] = {}


class _LevelFile(msgspec.Struct):
    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float


class _TableFile(msgspec.Struct):
    operation: str
    nodes: int
    ranks_per_node: int
    consecutive: bool
    sizes_bytes: list[float]
    times_s: list[float]


class _HardwareFile(msgspec.Struct):
    schema: str
    name: str
    provenance: str
    devices: list[_DeviceFile]
    levels: list[_LevelFile]
    collectives: list[_TableFile] = []
    operators: list[OperatorTableFile] = []
    sources: dict[str, str] = {}
    nodes: int | None = None
    two_node_trees: bool = True


def hardware_from_document(document: Any, file: str | None = None) -> Hardware:
    """A checked profile; `BadInput` names the file and the field."""
    if isinstance(document, dict) and document.get("schema") != SCHEMA:
        raise BadInput(
            f"unknown schema {document.get('schema')!r}", file=file, field="schema", expected=SCHEMA
        )
    try:
        parsed = msgspec.convert(document, _HardwareFile)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        found = where.strip("`").removeprefix("$.") or None
        raise BadInput(message, file=file, field=found) from None
    _check(parsed, file)
    return Hardware(
        parsed.name,
        parsed.provenance,
        tuple(Device(**msgspec.structs.asdict(d)) for d in parsed.devices),
        tuple(Level(**msgspec.structs.asdict(level)) for level in parsed.levels),
        tuple(
            CollectiveTable(
                t.operation,
                t.nodes,
                t.ranks_per_node,
                t.consecutive,
                tuple(t.sizes_bytes),
                tuple(t.times_s),
            )
            for t in parsed.collectives
        ),
        operator_tables(parsed.operators, file),
        parsed.sources,
        parsed.nodes,
        parsed.two_node_trees,
    )


def _check(parsed: _HardwareFile, file: str | None) -> None:
    def demand(holds: bool, field_name: str, problem: str, expected: str) -> None:
        if not holds:
            raise BadInput(problem, file=file, field=field_name, expected=expected)

    demand(bool(parsed.devices), "devices", "no devices", "at least one device kind")
    demand(
        len(parsed.levels) == 2,
        "levels",
        f"{len(parsed.levels)} levels",
        "two: in a node, between nodes",
    )
    for i, device in enumerate(parsed.devices):
        at = f"devices[{i}]"
        demand(device.count >= 1, f"{at}.count", f"{device.count}", "at least 1")
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
            value = getattr(device, name)
            demand(value > 0, f"{at}.{name}", f"{value}", "a finite number above 0")
        for name in ("compute_efficiency", "memory_efficiency"):
            value = getattr(device, name)
            demand(0 < value <= 1, f"{at}.{name}", f"{value}", "a fraction in (0, 1]")
        demand(
            device.kernel_latency_s >= 0,
            f"{at}.kernel_latency_s",
            f"{device.kernel_latency_s}",
            "at least 0",
        )
        demand(
            "float32" in device.peak_flops_per_s,
            f"{at}.peak_flops_per_s",
            "no entry for float32",
            "peaks by dtype, float32 among them",
        )
        for dtype, value in device.peak_flops_per_s.items():
            demand(value > 0, f"{at}.peak_flops_per_s.{dtype}", f"{value}", "above 0")
        for dtype, value in device.compute_efficiency_by_dtype.items():
            name = f"{at}.compute_efficiency_by_dtype.{dtype}"
            demand(0 < value <= 1, name, f"{value}", "a fraction in (0, 1]")
        for dtype, value in device.fast_convolution_saving.items():
            demand(value >= 1, f"{at}.fast_convolution_saving.{dtype}", f"{value}", "at least 1")
    for i, level in enumerate(parsed.levels):
        at = f"levels[{i}]"
        demand(level.size >= 1, f"{at}.size", f"{level.size}", "at least 1")
        demand(
            level.bandwidth_bytes_per_s > 0,
            f"{at}.bandwidth_bytes_per_s",
            f"{level.bandwidth_bytes_per_s}",
            "above 0",
        )
        demand(level.latency_s >= 0, f"{at}.latency_s", f"{level.latency_s}", "at least 0")
        demand(0 < level.efficiency <= 1, f"{at}.efficiency", f"{level.efficiency}", "in (0, 1]")
    for i, table in enumerate(parsed.collectives):
        at = f"collectives[{i}]"
        demand(
            len(table.sizes_bytes) == len(table.times_s) and len(table.sizes_bytes) >= 2,
            f"{at}.times_s",
            f"{len(table.times_s)} times for {len(table.sizes_bytes)} sizes",
            "as many times as sizes, at least two",
        )
        ascending = all(
            a < b for a, b in zip(table.sizes_bytes, table.sizes_bytes[1:], strict=False)
        )
        demand(
            ascending and table.sizes_bytes[0] > 0,
            f"{at}.sizes_bytes",
            "not ascending",
            "ascending sizes above 0",
        )
        demand(min(table.times_s) > 0, f"{at}.times_s", "a time of 0", "times above 0")
    demand(parsed.nodes is None or parsed.nodes >= 1, "nodes", f"{parsed.nodes}", "at least 1")
