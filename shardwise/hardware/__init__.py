"""Hardware: profiles, meshes, times of collectives, prices."""

from shardwise.hardware.bandwidth import OPERATIONS, bus_bandwidth, bus_factor
from shardwise.hardware.collectives import (
    Estimate,
    collective_time,
    collective_times,
)
from shardwise.hardware.device import Device
from shardwise.hardware.document import hardware_from_document
from shardwise.hardware.hardware import (
    CollectiveTable,
    Hardware,
    Overlap,
    Waiting,
    hardware_document,
)
from shardwise.hardware.levels import Level
from shardwise.hardware.mesh import GroupShape, Mesh, MeshAxis, TooFewDevices
from shardwise.hardware.offers import (
    Offer,
    on_demand_usd_per_hour,
    parse_offers,
    read_offers,
    stale,
)
from shardwise.hardware.profiles import list_builtin, load_hardware

__all__ = [
    "OPERATIONS",
    "CollectiveTable",
    "Device",
    "Estimate",
    "GroupShape",
    "Hardware",
    "Level",
    "Mesh",
    "MeshAxis",
    "Offer",
    "Overlap",
    "TooFewDevices",
    "Waiting",
    "bus_bandwidth",
    "bus_factor",
    "collective_time",
    "collective_times",
    "hardware_document",
    "hardware_from_document",
    "list_builtin",
    "load_hardware",
    "on_demand_usd_per_hour",
    "parse_offers",
    "read_offers",
    "stale",
]
