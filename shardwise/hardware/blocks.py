"""Blocks: the devices of a bundle in equal parts, each of one kind and in one node.

Devices are laid out by group, in the profile's order, and each group's on as few of its nodes as
hold them: nodes are filled one after another, and the last one has the rest. With m_j devices taken
of node j, the size of a block and the blocks of a node are

    b = gcd of all m_j,    m_j / b

so that the outer axis of a mesh has a place for every block, and devices of one block are alike and
close to each other (HeteroG's clusters: 4 and 6 blocks of 2). Rank r is device r mod b of block
r div b.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from shardwise.hardware.devices import Devices
from shardwise.hardware.groups import DeviceGroup
from shardwise.hardware.hardware import Hardware


@dataclass(frozen=True)
class Block:
    """A block's group, by name, and its node, numbered over the whole bundle from 0 on."""

    group: str
    node: int


@dataclass(frozen=True)
class Blocks:
    """The blocks of a bundle in the order of their ranks, each of `size` devices.

    Device `position` of block i has rank i · size + position.
    """

    hardware: Hardware
    bundle: Devices
    size: int
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, hardware: Hardware, bundle: Devices) -> Blocks:
        """Lays a bundle's devices out on the nodes of their groups.

        Raises `BadInput` for a bundle that the hardware does not have.
        """
        bundle = Devices.of(hardware, dict(bundle.counts))
        nodes = [
            (name, taken)
            for name, count in bundle.counts
            for taken in _taken(count, hardware.group(name).per_node)
        ]
        size = gcd(*(taken for _, taken in nodes))
        blocks = tuple(
            Block(name, node)
            for node, (name, taken) in enumerate(nodes)
            for _ in range(taken // size)
        )
        return cls(hardware, bundle, size, blocks)

    @property
    def gpus(self) -> int:
        """Devices of all blocks."""
        return self.size * len(self.blocks)

    @property
    def nodes(self) -> int:
        """Nodes that have any of the devices."""
        return self.blocks[-1].node + 1

    @cached_property
    def groups(self) -> tuple[DeviceGroup, ...]:
        """The group of each block."""
        return tuple(self.hardware.group(block.group) for block in self.blocks)


def _taken(count: int, per_node: int) -> list[int]:
    """Returns how many of a group's devices are taken of each node that is used."""
    full, rest = divmod(count, per_node)
    return [per_node] * full + ([rest] if rest else [])
