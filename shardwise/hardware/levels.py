"""Levels of links, from those between the devices of a node outwards (docs/hardware.md, Levels)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

INSIDE = "inside a node"
BETWEEN = "between nodes"
"""What the levels of a profile with two are called in answers, whatever their names."""
ACROSS_RACK = "across a rack"
BETWEEN_RACKS = "between racks"
"""What a measurement calls its levels beyond a node where nodes are in racks."""

MAX_LEVELS = 8
_ALIKE = 1 - 1e-9
"""Bandwidths that differ by rounding alone are equal."""


@dataclass(frozen=True)
class Level:
    """A level of links; `size` is how many units of the level below one of its units holds.

    The units below the innermost level are devices, those of the innermost level nodes.
    `bandwidth_bytes_per_s` is unidirectional: per device at the innermost level, per unit of the
    level below at any other, where all devices of that unit share it. `efficiency` is the stated
    fraction that collectives reach; `latency_s` is that of one step.

    `uplinks`: what crosses this level leaves through the links of the level below as well, as in
    leaf and spine switches; else the level has links of its own, as network cards are beside
    NVLink. `oversubscription`: how many times narrower the level is than its bandwidth says. With
    `rails` every device has an equal part of the bandwidth to itself, and peers at the same
    position of their nodes are not slowed by oversubscription. `fully_connected`, innermost level
    only: devices are linked pair by pair, so that k of them have (k-1)/(size-1) of the bandwidth.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float
    uplinks: bool = False
    oversubscription: float = 1.0
    rails: bool = False
    fully_connected: bool = False


@dataclass(frozen=True)
class Link:
    """A level as collectives see it; `below` is how many devices a unit of the level below has."""

    bandwidth: float
    latency_s: float
    size: int
    below: int
    uplinks: bool
    oversubscription: float
    rails: bool
    fully_connected: bool


def alike(levels: Sequence[Level]) -> list[list[int]]:
    """Returns the numbers of the levels, innermost first, those together whose links are alike.

    A level is like those below it if its links are their uplinks, have their latency and
    efficiency, and are wide enough never to decide: no collective can tell it from them.
    """
    groups: list[list[int]] = []
    for i, level in enumerate(levels):
        if i and _like(level, _joined(levels, groups[-1]), innermost=groups[-1][0] == 0):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _like(level: Level, below: Level, innermost: bool) -> bool:
    return (
        level.uplinks
        and level.oversubscription == 1.0
        and (innermost or below.rails or not level.rails)
        and not below.fully_connected
        and level.latency_s == below.latency_s
        and level.efficiency == below.efficiency
        and level.bandwidth_bytes_per_s >= below.size * below.bandwidth_bytes_per_s * _ALIKE
    )


def _joined(levels: Sequence[Level], numbers: Sequence[int]) -> Level:
    return replace(
        levels[numbers[0]],
        name=levels[numbers[-1]].name,
        size=prod(levels[i].size for i in numbers),
    )


def distinct(levels: Sequence[Level]) -> tuple[Level, ...]:
    """Returns the levels with those joined whose links are alike, named after the outermost."""
    return tuple(_joined(levels, numbers) for numbers in alike(levels))


def level_names(levels: Sequence[Level]) -> tuple[str, ...]:
    """Returns what answers call the distinct levels, innermost first."""
    if len(levels) == 2:
        return (INSIDE, BETWEEN)[: len(alike(levels))]
    innermost, *others = (level.name for level in distinct(levels))
    if not innermost.startswith("inside"):
        innermost = levels[0].name
    return (innermost, *others)


def level_words(levels: Sequence[Level]) -> tuple[str, ...]:
    """Returns the first word of the name of each distinct level: what sources, pins and
    measurements name it by."""
    return tuple(name.partition(" ")[0] for name in level_names(levels))


def links(levels: Sequence[Level], peak: bool = False) -> tuple[Link, ...]:
    """Returns the distinct levels as collectives see them; with `peak` without latency and with
    the full bandwidth."""
    below, found = 1, []
    for level in distinct(levels):
        efficiency = 1.0 if peak else level.efficiency
        found.append(
            Link(
                level.bandwidth_bytes_per_s * efficiency,
                0.0 if peak else level.latency_s,
                level.size,
                below,
                level.uplinks,
                level.oversubscription,
                level.rails,
                level.fully_connected,
            )
        )
        below *= level.size
    return tuple(found)


def joined_counts(levels: Sequence[Level], counts: Sequence[int]) -> tuple[int, ...]:
    """Returns a group's ranks in a node, nodes in a unit of the next level and so on, by distinct
    level instead, without those outside which it is alone."""
    joined = [prod(counts[i] for i in numbers if i < len(counts)) for numbers in alike(levels)]
    return trimmed(joined)


def trimmed(counts: Sequence[int]) -> tuple[int, ...]:
    """Returns the counts without ones at their end, but for the first."""
    last = max((i for i, count in enumerate(counts) if count > 1), default=0)
    return tuple(counts[: last + 1])
