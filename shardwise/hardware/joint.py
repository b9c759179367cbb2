"""Times of collectives and servers over devices of several groups (docs/costs.md, Several kinds).

A group of a collective has some of the blocks, and in each the same r ranks; N nodes have some of
it, m ranks in each, and s = block size / r groups like it run at once. With G bytes on a rank, B_in
the slowest bandwidth inside one of the nodes and B the slowest of their cards:

    ring          as of one kind (`collectives.py`) with these links: the slowest decides
    hierarchical  2 (m-1)/m G/B_in + 2 (N-1)/N s G/B, as many latencies; where nodes have unequal
                  numbers of ranks their leaders alone cross: 2 G/B_in + 2 (N-1)/N s G/B
    server(d)     one way, once ranks of one node have been summed: on d's card the sum over the
                  other nodes of s G/B_di, on any other node's card s G/B_id, with B_ij the card of
                  i or a slower path to j; the sum ends with the last of them
    uneven        all_gather and reduce_scatter of shards of which the least is a share w of all:
                  (1 - w) s G/B

all_reduce takes the faster of ring and hierarchical (HeteroG §5), `RingLinks` the ring alone.

A measured table comes first where it is of exactly these groups of nodes with as many ranks on
each, and at least as many siblings shared the nodes' cards as would here; it is interpolated as on
one kind. Nodes with unequal numbers of ranks have no tables, nor have servers, and `RingLinks` has
none of all_reduce: what was measured need not be a ring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import inf, log2

import numpy as np

from shardwise.hardware.blocks import Blocks
from shardwise.hardware.collectives import collective_times, find_table
from shardwise.hardware.derived import interpolate
from shardwise.hardware.grid import Floats
from shardwise.hardware.hardware import CollectiveTable, Hardware
from shardwise.hardware.levels import Level, Link
from shardwise.hardware.mesh import GroupShape


class JointLinks:
    """The links between the blocks of a cluster."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._slowest: dict[tuple[int, ...], Hardware] = {}
        self._nodes_of: dict[tuple[int, ...], dict[int, int]] = {}

    @cached_property
    def _views(self) -> list[Hardware]:
        """Per block the profile of its group."""
        return [self._blocks.hardware.of_group(group.name) for group in self._blocks.groups]

    def view(self, block: int) -> Hardware:
        """Returns the profile of a block's group alone."""
        return self._views[block]

    def _link(self, block: int, level: int) -> Link:
        return self._views[block].links[min(level, len(self._views[block].links) - 1)]

    def bandwidth(self, block: int, other: int, *, collectives: bool = False) -> float:
        """Returns bytes per second of a block's card towards another block's node, for collectives
        or for what one node sends another."""
        own, there = self._blocks.groups[block].name, self._blocks.groups[other].name
        path, card = self._blocks.hardware.path(own, there), self._link(block, 1).bandwidth
        if path is None or (collectives and not path.collectives):
            return card
        return min(card, path.bandwidth_bytes_per_s)

    def latency_s(self, block: int) -> float:
        """Returns the latency of a block's card."""
        return self._link(block, 1).latency_s

    def node(self, block: int) -> int:
        """Returns the node of a block."""
        return self._blocks.blocks[block].node

    def inside(self, block: int) -> Link:
        """Returns the links inside a block's node."""
        return self._link(block, 0)

    def times(
        self, operation: str, sizes_bytes: Floats, support: tuple[int, ...], ranks: int
    ) -> Floats:
        """Returns seconds of a collective over `ranks` devices in each block of `support`, for each
        size; 0 for a group of one."""
        nodes = self._nodes(support)
        most = max(nodes.values()) * ranks
        if len(nodes) == 1:
            view, shape = self._views[support[0]], self._shape_inside(support, ranks)
            return collective_times(view, operation, sizes_bytes, shape)
        table = self.table(operation, support, ranks)
        if table is not None:
            return interpolate(table, sizes_bytes, np.array(table.times_s))
        shape = GroupShape(
            len(support) * ranks,
            len(nodes),
            most,
            self._blocks.size // ranks,
            ranks == self._blocks.size,
            len(set(nodes.values())) == 1,
        )
        slowest = self._slowest_of(support)
        ring = collective_times(slowest, operation, sizes_bytes, shape)
        if operation != "all_reduce":
            return ring
        return np.minimum(ring, self._hierarchical_s(sizes_bytes, slowest, nodes, ranks))

    def _shape_inside(self, support: tuple[int, ...], ranks: int) -> GroupShape:
        """Returns the shape of a group that is in one node."""
        size = len(support) * ranks
        return GroupShape(size, 1, size, 1, ranks == self._blocks.size)

    def table(self, operation: str, support: tuple[int, ...], ranks: int) -> CollectiveTable | None:
        """Returns the table of a collective, None where it is modelled.

        Over several nodes it is a measured one; of several, the one with the fewest siblings that
        are enough.
        """
        nodes = self._nodes(support)
        if len(nodes) == 1:
            shape = self._shape_inside(support, ranks)
            return find_table(self._views[support[0]], operation, shape)
        if len(set(nodes.values())) > 1 or not self._blocks.hardware.collectives:
            return None
        of_node = {self.node(block): self._blocks.groups[block].name for block in support}
        key = (operation, tuple(sorted(of_node.values())), max(nodes.values()) * ranks)
        together = self._blocks.size // ranks
        known = [t for t in self._tables.get(key, ()) if (t.siblings or inf) >= together]
        return min(known, key=lambda t: t.siblings or inf, default=None)

    @cached_property
    def _tables(self) -> dict[tuple[str, tuple[str, ...], int], list[CollectiveTable]]:
        """The measured tables by operation, the groups of their nodes, and ranks on each node."""
        tables: dict[tuple[str, tuple[str, ...], int], list[CollectiveTable]] = {}
        for table in self._blocks.hardware.collectives:
            if table.nodes > 1:
                key = (table.operation, tuple(sorted(table.groups)), table.ranks_per_node)
                tables.setdefault(key, []).append(table)
        return tables

    def _nodes(self, support: tuple[int, ...]) -> dict[int, int]:
        """Returns how many blocks of the support each node has."""
        if support not in self._nodes_of:
            self._nodes_of[support] = dict(Counter(map(self.node, support)))
        return self._nodes_of[support]

    def _slowest_of(self, support: tuple[int, ...]) -> Hardware:
        """Returns a profile of nodes as slow as the slowest links of the support."""
        if support not in self._slowest:
            cards = [
                min(
                    self.bandwidth(block, other, collectives=True)
                    for other in support
                    if other != block
                )
                for block in support
            ]
            nodes = self._nodes(support)
            size = self._blocks.size * max(nodes.values())
            levels = self.slowest_levels(support, cards, size, len(nodes))
            whole = self._blocks.hardware
            self._slowest[support] = Hardware(
                whole.name,
                whole.provenance,
                whole.devices,
                levels,
                two_node_trees=whole.two_node_trees,
            )
        return self._slowest[support]

    def slowest_levels(
        self, support: Sequence[int], cards: Sequence[float], size: int, nodes: int
    ) -> tuple[Level, Level]:
        """Returns the levels of `nodes` nodes of `size` devices that are as slow as the slowest of
        some blocks, whose cards have these bandwidths (bytes per second)."""
        inside = [self.inside(block) for block in support]
        return (
            Level(
                "inside a node",
                size,
                min(link.bandwidth for link in inside),
                max(link.latency_s for link in inside),
                1.0,
            ),
            Level(
                "between nodes",
                nodes,
                min(cards),
                max(self.latency_s(block) for block in support),
                1.0,
            ),
        )

    def _hierarchical_s(
        self, sizes_bytes: Floats, slowest: Hardware, nodes: dict[int, int], ranks: int
    ) -> Floats:
        inside, across = slowest.levels
        most, count = max(nodes.values()) * ranks, len(nodes)
        is_even = len(set(nodes.values())) == 1
        within = 2.0 * ((most - 1) / most if is_even else float(most > 1))
        siblings = self._blocks.size // ranks
        between = 2.0 * (count - 1) / count * siblings
        per_byte = within / inside.bandwidth_bytes_per_s + between / across.bandwidth_bytes_per_s
        steps_s = 2 * log2(most) * inside.latency_s + 2 * log2(count) * across.latency_s
        return np.asarray(sizes_bytes * per_byte + steps_s)

    def to_server_s(
        self, sizes_bytes: Floats, server: int, block: int, support: tuple[int, ...], ranks: int
    ) -> Floats:
        """Returns how long a block's links are busy while all ranks of `support` bring their
        gradients to the block `server`, or while it sends as much back."""
        nodes = self._nodes(support)
        most = nodes.get(self.node(block), 0) * ranks
        if not most:
            return np.zeros_like(sizes_bytes)
        shape = GroupShape(most, 1, most, 1, consecutive=True)
        inside = collective_times(self._views[block], "broadcast", sizes_bytes, shape)
        at_server = self.node(server)
        far = [i for i in support if self.node(i) != at_server]
        siblings = self._blocks.size // ranks
        if self.node(block) != at_server:
            card, latency = self.bandwidth(block, server), self.latency_s(block)
            return np.asarray(inside + siblings * sizes_bytes / card + latency)
        nodes_far = {self.node(i): i for i in far}
        per_byte = sum(1.0 / self.bandwidth(server, i) for i in nodes_far.values())
        steps_s = len(nodes_far) * self.latency_s(server)
        return np.asarray(inside + siblings * sizes_bytes * per_byte + steps_s)

    def flows_s(self, flows: Floats, block: int) -> tuple[float, float]:
        """Returns how long a block's links are busy with flows between blocks: seconds per byte of
        what `flows` (blocks, blocks) are shares of, and seconds.

        Flows within a node take the links inside; what one rank sends, every rank of its block
        sends, all through the node's card.
        """
        node = [self.node(i) for i in range(len(flows))]
        own = [i for i in range(len(flows)) if node[i] == node[block]]
        far = [i for i in range(len(flows)) if node[i] != node[block]]
        size = self._blocks.size
        sent, came = float(flows[np.ix_(own, far)].sum()), float(flows[np.ix_(far, own)].sum())
        within = flows[np.ix_(own, own)]
        near = max(float(within.sum(axis=1).max()), float(within.sum(axis=0).max()))
        per_byte, fixed = near / self.inside(block).bandwidth, 0.0
        if near:
            fixed += self.inside(block).latency_s
        if sent or came:
            peers = [i for i in far if flows[own, i].any() or flows[i, own].any()]
            card = min(self.bandwidth(block, other) for other in peers)
            per_byte += size * max(sent, came) / card
            fixed += self.latency_s(block)
        return per_byte, fixed


class RingLinks(JointLinks):
    """The links where every all_reduce runs along a ring, as Horovod has it."""

    def table(self, operation: str, support: tuple[int, ...], ranks: int) -> CollectiveTable | None:
        return None if operation == "all_reduce" else super().table(operation, support, ranks)

    def _hierarchical_s(
        self, sizes_bytes: Floats, slowest: Hardware, nodes: dict[int, int], ranks: int
    ) -> Floats:
        return np.full_like(sizes_bytes, np.inf)
