"""The file form of a profile, `shardwise.hardware/1`: read and checked field by field."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any

import msgspec

from shardwise import validation
from shardwise.errors import BadInput
from shardwise.hardware.attention import AttentionTable
from shardwise.hardware.device import Device
from shardwise.hardware.file_checks import check_members, check_units
from shardwise.hardware.group_checks import (
    check_group_levels,
    check_groups,
    check_paths,
    check_table_groups,
)
from shardwise.hardware.groups import DeviceGroup, GroupPath
from shardwise.hardware.hardware import SCHEMA, CollectiveTable, Hardware, Overlap, Waiting
from shardwise.hardware.host import Host, HostMemory
from shardwise.hardware.level_checks import check_levels, check_table_levels
from shardwise.hardware.levels import Level
from shardwise.hardware.operator_tables import OperatorTableFile, operator_tables
from shardwise.hardware.products import ProductTable


class _ProductsFile(msgspec.Struct):
    dtype: str
    m: list[float]
    n: list[float]
    k: list[float]
    utilisation: list[float]
    unaligned: float = 1.0


class _AttentionFile(msgspec.Struct):
    dtype: str
    head_size: float
    heads: list[float]
    lengths: list[float]
    utilisation: list[float]


class _DeviceFile(msgspec.Struct):
    kind: str
    memory_bytes: float
    peak_flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    compute_efficiency: float
    memory_efficiency: float
    kernel_latency_s: float
    compute_efficiency_by_dtype: dict[str, float] = {}
    fast_convolution_saving: dict[str, float] = {}
    products: list[_ProductsFile] = []
    sustained_clock: float = 1.0
    attention: list[_AttentionFile] = []
    power_limit_w: float | None = None
    count: int | None = None

    def device(self, in_groups: bool) -> Device:
        """Returns the device that this describes; groups say how many there are, not `count`."""
        members = msgspec.structs.asdict(self)
        members["count"] = 1 if in_groups else self.count
        members["products"] = tuple(
            ProductTable(
                p.dtype, tuple(p.m), tuple(p.n), tuple(p.k), tuple(p.utilisation), p.unaligned
            )
            for p in self.products
        )
        members["attention"] = tuple(
            AttentionTable(
                a.dtype, a.head_size, tuple(a.heads), tuple(a.lengths), tuple(a.utilisation)
            )
            for a in self.attention
        )
        return Device(**members)


class _LevelFile(msgspec.Struct):
    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float
    uplinks: bool = False
    oversubscription: float = 1.0
    rails: bool = False
    fully_connected: bool = False


class _TableFile(msgspec.Struct):
    operation: str
    nodes: int
    ranks_per_node: int
    consecutive: bool
    sizes_bytes: list[float]
    times_s: list[float]
    p10_s: list[float] = []
    p90_s: list[float] = []
    repeats: list[int] = []
    siblings: int | None = None
    derived: str = ""
    ranks_by_level: list[int] = []
    groups: list[str] = []


class _OverlapFile(msgspec.Struct):
    hidden_fraction: float
    computation_slowdown: float
    communication_slowdown: float
    operation: str
    size_bytes: float


class _WaitingFile(msgspec.Struct):
    compute_s: list[float]
    wait_s: list[float]


class _HostFile(msgspec.Struct):
    operator_s: float
    collective_s: float


class _HostMemoryFile(msgspec.Struct):
    memory_bytes: float
    bandwidth_bytes_per_s: float
    link_bytes_per_s: float
    efficiency: float


class _PathFile(msgspec.Struct, rename={"source": "from", "target": "to"}):
    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float
    collectives: bool = True


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
    overlap: _OverlapFile | None = None
    measurement: dict[str, Any] = {}
    packing: bool = False
    waiting: _WaitingFile | None = None
    host: _HostFile | None = None
    host_memory: _HostMemoryFile | None = None
    groups: list[DeviceGroup] = []
    paths: list[_PathFile] = []


def hardware_from_document(document: Any, file: str | None = None) -> Hardware:
    """Returns a checked profile; `BadInput` names the file and the field."""
    if isinstance(document, dict) and document.get("schema") != SCHEMA:
        raise BadInput(
            f"unknown schema {document.get('schema')!r}", file=file, field="schema", expected=SCHEMA
        )
    check_members(document, _HardwareFile, {"devices": _DeviceFile, "levels": _LevelFile}, file)
    parsed = validation.convert(document, _HardwareFile, file=file)
    for name in ("devices", "levels"):
        for place, one in enumerate(getattr(parsed, name)):
            check_units(one, f"{name}[{place}]", file)
    levels = tuple(Level(**msgspec.structs.asdict(level)) for level in parsed.levels)
    paths = tuple(GroupPath(**msgspec.structs.asdict(path)) for path in parsed.paths)
    _check(parsed, levels, paths, file)
    return Hardware(
        parsed.name,
        parsed.provenance,
        tuple(device.device(bool(parsed.groups)) for device in parsed.devices),
        levels,
        tuple(
            CollectiveTable(
                t.operation,
                t.nodes,
                t.ranks_per_node,
                t.consecutive,
                tuple(t.sizes_bytes),
                tuple(t.times_s),
                tuple(t.p10_s),
                tuple(t.p90_s),
                tuple(t.repeats),
                t.siblings,
                t.derived,
                tuple(t.ranks_by_level),
                tuple(sorted(t.groups)),
            )
            for t in parsed.collectives
        ),
        operator_tables(parsed.operators, file),
        parsed.sources,
        parsed.nodes,
        parsed.two_node_trees,
        None if parsed.overlap is None else Overlap(**msgspec.structs.asdict(parsed.overlap)),
        parsed.measurement,
        parsed.packing,
        None
        if parsed.waiting is None
        else Waiting(tuple(parsed.waiting.compute_s), tuple(parsed.waiting.wait_s)),
        None if parsed.host is None else Host(**msgspec.structs.asdict(parsed.host)),
        None
        if parsed.host_memory is None
        else HostMemory(**msgspec.structs.asdict(parsed.host_memory)),
        tuple(parsed.groups),
        paths,
    )


def _check(
    parsed: _HardwareFile, levels: tuple[Level, ...], paths: tuple[GroupPath, ...], file: str | None
) -> None:
    def demand(holds: bool, field_name: str, problem: str, expected: str) -> None:
        if not holds:
            raise BadInput(problem, file=file, field=field_name, expected=expected)

    demand(bool(parsed.devices), "devices", "no devices", "at least one device kind")
    for i, device in enumerate(parsed.devices):
        at = f"devices[{i}]"
        if not parsed.groups:
            count = device.count
            demand(count is not None, f"{at}.count", "missing", "the devices of a node, at least 1")
            demand((count or 0) >= 1, f"{at}.count", f"got {count}", "at least 1")
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
            value = getattr(device, name)
            demand(value > 0, f"{at}.{name}", f"got {value}", "a finite number above 0")
        for name in ("compute_efficiency", "memory_efficiency"):
            value = getattr(device, name)
            demand(0 < value <= 1, f"{at}.{name}", f"got {value}", "a fraction in (0, 1]")
        demand(
            device.kernel_latency_s >= 0,
            f"{at}.kernel_latency_s",
            f"got {device.kernel_latency_s}",
            "at least 0",
        )
        demand(
            "float32" in device.peak_flops_per_s,
            f"{at}.peak_flops_per_s",
            "no entry for float32",
            "peaks by dtype, float32 among them",
        )
        for dtype, value in device.peak_flops_per_s.items():
            demand(value > 0, f"{at}.peak_flops_per_s.{dtype}", f"got {value}", "above 0")
        for dtype, value in device.compute_efficiency_by_dtype.items():
            name = f"{at}.compute_efficiency_by_dtype.{dtype}"
            demand(0 < value <= 1, name, f"got {value}", "a fraction in (0, 1]")
        for dtype, value in device.fast_convolution_saving.items():
            demand(
                value >= 1, f"{at}.fast_convolution_saving.{dtype}", f"got {value}", "at least 1"
            )
        clock = device.sustained_clock
        demand(0 < clock <= 1, f"{at}.sustained_clock", f"got {clock}", "a share in (0, 1]")
        limit = device.power_limit_w
        demand(limit is None or limit > 0, f"{at}.power_limit_w", f"got {limit}", "watts above 0")
        for p, products in enumerate(device.products):
            _check_grid(products, ("m", "n", "k"), f"{at}.products[{p}]", demand)
            share = products.unaligned
            demand(
                0 < share <= 1, f"{at}.products[{p}].unaligned", f"got {share}", "a share in (0, 1]"
            )
        for a, attention in enumerate(device.attention):
            place = f"{at}.attention[{a}]"
            size = attention.head_size
            demand(size > 0, f"{place}.head_size", f"got {size}", "above 0")
            _check_grid(attention, ("heads", "lengths"), place, demand)
    names = [group.name for group in parsed.groups]
    if parsed.groups:
        demand(
            parsed.nodes is None,
            "nodes",
            f"got {parsed.nodes}",
            "none where there are groups, which say their nodes",
        )
        check_group_levels(levels, demand)
        check_groups(parsed.groups, [device.kind for device in parsed.devices], demand)
    check_levels(levels, parsed.devices[0].count, demand)
    check_paths(paths, names, demand)
    for i, table in enumerate(parsed.collectives):
        at = f"collectives[{i}]"
        demand(
            len(table.sizes_bytes) == len(table.times_s) and len(table.sizes_bytes) >= 2,
            f"{at}.times_s",
            f"{len(table.times_s)} times for {len(table.sizes_bytes)} sizes",
            "as many times as sizes, at least two",
        )
        check_table_levels(
            (table.ranks_per_node, table.nodes), table.ranks_by_level, len(levels), at, demand
        )
        check_table_groups(table.groups, table.nodes, names, at, demand)
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
        for name in ("p10_s", "p90_s", "repeats"):
            values = getattr(table, name)
            demand(
                len(values) in (0, len(table.sizes_bytes)) and min(values, default=1) > 0,
                f"{at}.{name}",
                f"{len(values)} values for {len(table.sizes_bytes)} sizes",
                "none, or one above 0 for each size",
            )
    if parsed.overlap is not None:
        hidden = parsed.overlap.hidden_fraction
        demand(0 <= hidden <= 1, "overlap.hidden_fraction", f"got {hidden}", "a fraction in [0, 1]")
    if parsed.waiting is not None:
        apart, waits = parsed.waiting.compute_s, parsed.waiting.wait_s
        demand(
            bool(apart) and apart[0] >= 0 and all(a < b for a, b in pairwise(apart)),
            "waiting.compute_s",
            f"got {apart}",
            "ascending seconds from 0 on, at least one",
        )
        demand(
            len(waits) == len(apart) and min(waits) >= 0,
            "waiting.wait_s",
            f"got {waits}",
            "as many as compute_s, each at least 0",
        )
    if parsed.host_memory is not None:
        for name in ("memory_bytes", "bandwidth_bytes_per_s", "link_bytes_per_s"):
            value = getattr(parsed.host_memory, name)
            demand(0 < value < inf, f"host_memory.{name}", f"got {value}", "a number above 0")
        value = parsed.host_memory.efficiency
        demand(0 < value <= 1, "host_memory.efficiency", f"got {value}", "a fraction in (0, 1]")
    if parsed.host is not None:
        for name in ("operator_s", "collective_s"):
            value = getattr(parsed.host, name)
            demand(0 <= value < 1, f"host.{name}", f"got {value}", "seconds from 0 to 1")
    demand(parsed.nodes is None or parsed.nodes >= 1, "nodes", f"got {parsed.nodes}", "at least 1")


def _check_grid(
    table: _ProductsFile | _AttentionFile,
    axes: tuple[str, ...],
    at: str,
    demand: Callable[..., None],
) -> None:
    points = 1
    for name in axes:
        knots = getattr(table, name)
        ascending = len(knots) >= 2 and knots[0] > 0 and all(a < b for a, b in pairwise(knots))
        demand(ascending, f"{at}.{name}", f"got {knots}", "at least two ascending sizes above 0")
        points *= len(knots)
    demand(
        len(table.utilisation) == points and min(table.utilisation, default=0) > 0,
        f"{at}.utilisation",
        f"{len(table.utilisation)} values",
        f"{points} values above 0, one for each {', '.join(axes[:-1])} and {axes[-1]}",
    )
