"""Graphs and hardware profiles as a service stores and lists them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class GraphTensor(msgspec.Struct, frozen=True):
    """A tensor; `batch_dim` is the dimension that counts samples.

    A `frozen` parameter is not trained; it may be `stored` in another form than it is computed
    with (docs/tuning.md).
    """

    name: str
    shape: list[int]
    dtype: str
    role: str
    batch_dim: int | UnsetType = UNSET
    frozen: bool | UnsetType = UNSET
    stored: str | UnsetType = UNSET


class GraphOperator(msgspec.Struct, frozen=True):
    """An operator: the names of the tensors that it reads and writes."""

    name: str
    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] | UnsetType = UNSET
    scope: str | UnsetType = UNSET


class Graph(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.graph/1"):
    """A model's graph."""

    name: str
    tensors: list[GraphTensor]
    operators: list[GraphOperator]


class GraphSummary(
    msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.graph-summary/1"
):
    """A stored graph as lists show it; `tensors` counts them by role."""

    id: str
    name: str
    operators: int
    tensors: dict[str, Any]
    parameters: int
    parameter_bytes: int
    batch_size: int | None
    size_bytes: int
    created_at: str


class GraphPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of graphs; `next` is the cursor of the next one."""

    items: list[GraphSummary]
    next: str | None


class HardwareLevel(msgspec.Struct, frozen=True):
    """A level of links of a profile (docs/hardware.md, Levels).

    `size` is how many units of the level below one of its units holds, `bandwidth_bytes_per_s`
    unidirectional, per device at the innermost level and per unit of the level below at others.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float
    uplinks: bool | UnsetType = UNSET
    oversubscription: float | UnsetType = UNSET
    rails: bool | UnsetType = UNSET
    fully_connected: bool | UnsetType = UNSET


class Hardware(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.hardware/1"):
    """A hardware profile (docs/hardware.md); `levels` of links from the innermost outwards.

    With `groups`, devices of several kinds and `paths` between their nodes.
    """

    name: str
    provenance: str
    devices: list[dict[str, Any]]
    levels: list[HardwareLevel]
    collectives: list[dict[str, Any]] | UnsetType = UNSET
    operators: list[dict[str, Any]] | UnsetType = UNSET
    sources: dict[str, Any] | UnsetType = UNSET
    nodes: int | UnsetType = UNSET
    groups: list[dict[str, Any]] | UnsetType = UNSET
    paths: list[dict[str, Any]] | UnsetType = UNSET


class GroupSummary(msgspec.Struct, frozen=True):
    """A group of a profile's devices; `memory_bytes` is that of one device."""

    name: str
    kind: str
    nodes: int
    per_node: int
    memory_bytes: float


class HardwareSummary(
    msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.hardware-summary/1"
):
    """A profile as lists show it; `memory_bytes` is that of one device.

    With `groups` of devices, `device` names all kinds, `gpus_per_node` is of the largest node,
    `memory_bytes` of the smallest device, `max_nodes` the nodes of all groups.
    """

    id: str
    name: str
    builtin: bool
    provenance: str
    device: str
    gpus_per_node: int
    memory_bytes: float
    max_nodes: int
    measured: bool
    created_at: str | None
    groups: list[GroupSummary] | UnsetType = UNSET


class HardwarePage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of uploaded profiles, and the built-in ones."""

    items: list[HardwareSummary]
    next: str | None
    builtin: list[HardwareSummary]


class HardwareVersion(
    HardwareSummary, frozen=True, kw_only=True, tag="shardwise.hardware-summary/1"
):
    """A version of a profile, and the one that it was derived from."""

    version: int
    previous_id: str | None


class HardwareVersionPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """The versions of a profile, the newest first."""

    items: list[HardwareVersion]
    next: str | None
    builtin: list[HardwareSummary] | UnsetType = UNSET


class Refitted(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.hardware-summary/1"):
    """The new version of a profile, and the number of runs that it was fitted to."""

    id: str
    name: str
    version: int
    previous_id: str | None
    runs: int
