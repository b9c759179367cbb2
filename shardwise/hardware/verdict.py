"""Is this bandwidth normal? A measured table against the peak of its links (nccl-tests issue 293).

    share = ideal time / measured time at the table's largest size

The ideal is the formula of `collectives.py` with every link at its peak and no latency, so the
share is nccl-tests' bus bandwidth over the peak of the slowest link, sibling groups counted.

    links      normal from   suspicious below   known
    nvlink     0.70          0.45               H100 370 to 380 of 450 GB/s (NVIDIA/nccl-tests
                                                issue 212, NVIDIA/nccl issue 1264), V100 on NVSwitch
                                                120 of 150 (NVIDIA/nccl issue 258)
    pcie       0.35          0.20               through the host every byte passes twice where cards
                                                have no peer access (NVIDIA/nccl issue 1309)
    network    0.70          0.50               one EDR card 12.2 of 12.5 GB/s (NVIDIA/nccl-tests
                                                issue 29); ACS left on halves it (issue 112)
    loopback   0.03          0.01               measured here: gloo over TCP with 2 and 4 ranks on 2
                                                busy cores, 0.02 (reduce_scatter, which is done
                                                as an all_reduce) to 0.36 (broadcast) of a copy

Above 1.1 the figure is suspicious too, as no link carries more than its peak; but all_reduce inside
NVLink may reach 1.3, for switches that add up send less (H200: 475 of 450, nccl-tests issue 272).
A largest size below `LARGE_ENOUGH_BYTES` is latency, not bandwidth, and gets no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from shardwise.hardware.bandwidth import bus_bandwidth
from shardwise.hardware.collectives import link_coefficients
from shardwise.hardware.hardware import CollectiveTable, Hardware
from shardwise.hardware.levels import level_words
from shardwise.hardware.mesh import GroupShape, LevelShape

Status = Literal["normal", "low", "suspicious", "unknown"]

THRESHOLDS = {
    "nvlink": (0.70, 0.45),
    "pcie": (0.35, 0.20),
    "network": (0.70, 0.50),
    "loopback": (0.03, 0.01),
}
"""Per kind of link: normal from, suspicious below."""

ABOVE_PEAK, ABOVE_PEAK_IN_SWITCH = 1.1, 1.3
LARGE_ENOUGH_BYTES = {"loopback": 2.0**20, "nvlink": 2.0**26, "pcie": 2.0**26, "network": 2.0**26}


@dataclass(frozen=True)
class Verdict:
    """`share` of the links' peak at the largest size (None where it is not known)."""

    status: Status
    bus_bytes_per_s: float
    share: float | None
    reason: str


def verdict(hardware: Hardware, table: CollectiveTable) -> Verdict:
    """Returns whether a table of this profile is what its links usually reach."""
    size, time = table.sizes_bytes[-1], table.times_s[-1]
    bus = bus_bandwidth(table.operation, table.size, size, time)
    if table.groups:
        if len(set(table.groups)) > 1:
            return Verdict("unknown", bus, None, "its nodes are of several groups")
        return verdict(hardware.of_group(table.groups[0]), replace(table, groups=()))
    kind = link_kind(hardware, table)
    if kind is None:
        return Verdict("unknown", bus, None, "the profile does not say what its links are")
    if size < LARGE_ENOUGH_BYTES[kind]:
        return Verdict(
            "unknown", bus, None, f"{size:,.0f} bytes are too few to judge a bandwidth by"
        )
    share = size * link_coefficients(hardware, table.operation, _shape(hardware, table)) / time
    normal, suspicious = THRESHOLDS[kind]
    ceiling = ABOVE_PEAK
    if kind == "nvlink" and table.operation == "all_reduce":
        ceiling = ABOVE_PEAK_IN_SWITCH
    text = f"{share:.0%} of the {kind} peak"
    if share > ceiling:
        return Verdict("suspicious", bus, share, f"{text}: more than a link carries")
    if share < suspicious:
        return Verdict("suspicious", bus, share, f"{text}, usually {normal:.0%} or more")
    if share < normal:
        return Verdict("low", bus, share, f"{text}, usually {normal:.0%} or more")
    return Verdict("normal", bus, share, text)


def reached_bytes_per_s(hardware: Hardware, table: CollectiveTable, level: int) -> float:
    """Returns the bandwidth of a level whose links alone would make a table's largest size as slow
    as it was: what a unit of the level below has, sibling groups counted."""
    levels = list(hardware.levels)
    levels[level] = replace(levels[level], bandwidth_bytes_per_s=1.0, efficiency=1.0)
    alone = replace(hardware, levels=tuple(levels))
    size, time = table.sizes_bytes[-1], table.times_s[-1]
    return size * link_coefficients(alone, table.operation, _shape(alone, table)) / time


def link_kind(hardware: Hardware, table: CollectiveTable) -> str | None:
    """Returns what the slowest links of a table's groups are, as the profile says it."""
    counts = hardware.counts(table)
    level = level_words(hardware.levels)[len(counts) - 1]
    links = hardware.measurement.get("links")
    if isinstance(links, dict):
        kind = links.get(level)
        return kind if isinstance(kind, str) and kind in THRESHOLDS else None
    source = hardware.sources.get(f"levels.{level}", "").lower()
    if level == "between":
        return "network" if source else None
    kinds = ("nvlink", "pci", "network") if level != "inside" else ("nvlink", "pci")
    kind = next((kind for kind in kinds if kind in source), None)
    return "pcie" if kind == "pci" else kind


def _shape(hardware: Hardware, table: CollectiveTable) -> GroupShape:
    counts, links = hardware.counts(table), hardware.links
    node = counts[0]
    siblings = table.siblings or max(hardware.per_node // table.ranks_per_node, 1)
    if len(links) < 3:
        alone = len(counts) == 1
        return GroupShape(
            table.size, table.size // node, node, 1 if alone else siblings, table.consecutive
        )
    ranks, levels = 1, []
    for i, link in enumerate(links):
        parts = counts[i] if i < len(counts) else 1
        sharing = siblings if i == 1 else max(link.below // ranks, 1)
        ranks *= parts
        units = prod(counts[i + 1 :])
        levels.append(LevelShape(parts, ranks, units, sharing if i < len(counts) else 1))
    return GroupShape(
        table.size, table.size // node, node, siblings, table.consecutive, levels=tuple(levels)
    )
