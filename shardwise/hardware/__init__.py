"""Hardware: profiles, meshes, times of collectives, prices."""

from shardwise.hardware.collectives import (
    OPERATIONS,
    Estimate,
    collective_time,
    collective_times,
)
from shardwise.hardware.hardware import (
    CollectiveTable,
    Device,
    Hardware,
    Level,
    hardware_document,
    hardware_from_document,
)
from shardwise.hardware.mesh import GroupShape, Mesh, MeshAxis, TooFewDevices
from shardwise.hardware.offers import Offer, parse_offers, read_offers, stale
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
    "TooFewDevices",
    "collective_time",
    "collective_times",
    "hardware_document",
    "hardware_from_document",
    "list_builtin",
    "load_hardware",
    "parse_offers",
    "read_offers",
    "stale",
]
