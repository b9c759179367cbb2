"""Hardware: profiles, meshes, groups and blocks of devices, times of collectives, prices."""

from shardwise.hardware.bandwidth import OPERATIONS, bus_bandwidth, bus_factor
from shardwise.hardware.blocks import Block, Blocks
from shardwise.hardware.builtin import list_builtin
from shardwise.hardware.bundles import USUAL, parse_bundles, parts_of, usual_bundles
from shardwise.hardware.collectives import (
    Estimate,
    collective_time,
    collective_times,
)
from shardwise.hardware.combined import Nodes, combined_profile, group_name
from shardwise.hardware.device import Device
from shardwise.hardware.devices import Devices, devices_of
from shardwise.hardware.document import hardware_from_document
from shardwise.hardware.gpu_profile import usual_profile
from shardwise.hardware.gpus import Gpu, find_gpu, gpu_table
from shardwise.hardware.groups import DeviceGroup, GroupLink, GroupPath
from shardwise.hardware.hardware import (
    CollectiveTable,
    Hardware,
    Overlap,
    Waiting,
    hardware_document,
)
from shardwise.hardware.held_out import HeldOut, held_out_errors
from shardwise.hardware.joint import JointLinks, RingLinks
from shardwise.hardware.levels import Level
from shardwise.hardware.linear_fit import linear_fit
from shardwise.hardware.mesh import GroupShape, Mesh, MeshAxis, TooFewDevices
from shardwise.hardware.new_profile import new_profile, ways_inside
from shardwise.hardware.offer_files import read_offers
from shardwise.hardware.offers import Offer, on_demand_usd_per_hour, parse_offers, stale
from shardwise.hardware.prices import (
    GroupPrice,
    bundle_usd_per_hour,
    group_prices,
    node_prices,
)
from shardwise.hardware.profiles import builtin_name, load_hardware, unknown_hardware

__all__ = [
    "OPERATIONS",
    "USUAL",
    "Block",
    "Blocks",
    "CollectiveTable",
    "Device",
    "DeviceGroup",
    "Devices",
    "Estimate",
    "Gpu",
    "GroupLink",
    "GroupPath",
    "GroupPrice",
    "GroupShape",
    "Hardware",
    "HeldOut",
    "JointLinks",
    "Level",
    "Mesh",
    "MeshAxis",
    "Nodes",
    "Offer",
    "Overlap",
    "RingLinks",
    "TooFewDevices",
    "Waiting",
    "builtin_name",
    "bundle_usd_per_hour",
    "bus_bandwidth",
    "bus_factor",
    "collective_time",
    "collective_times",
    "combined_profile",
    "devices_of",
    "find_gpu",
    "gpu_table",
    "group_name",
    "group_prices",
    "hardware_document",
    "hardware_from_document",
    "held_out_errors",
    "linear_fit",
    "list_builtin",
    "load_hardware",
    "new_profile",
    "node_prices",
    "on_demand_usd_per_hour",
    "parse_bundles",
    "parse_offers",
    "parts_of",
    "read_offers",
    "stale",
    "unknown_hardware",
    "usual_bundles",
    "usual_profile",
    "ways_inside",
]
