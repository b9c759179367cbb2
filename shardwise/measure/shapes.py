"""Which groups a mesh of the job's world produces: what there is to measure.

A set of mesh axes spans sibling groups that run at once. Tables are looked up by (ranks per node,
nodes per rack, racks, consecutive). If several sets of axes have the same key (strides of 2 and of
4 on a node of 8), the one whose groups reach farthest is measured, as the cost model prices the
worst.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from shardwise.hardware.mesh import GroupShape, Mesh


@dataclass(frozen=True)
class Siblings:
    """The groups of one shape, each a list of ranks, that together contain all ranks.

    `nodes` is the number of nodes of the job, or those that groups over several kinds are on;
    `kinds` is then the name of each such node's group of devices, sorted.
    """

    shape: GroupShape
    groups: tuple[tuple[int, ...], ...]
    nodes: int
    kinds: tuple[str, ...] = ()

    @property
    def per_node(self) -> int:
        """The number of groups that share one node."""
        if self.shape.nodes > 1:
            return self.shape.siblings_per_node
        ranks = sum(len(group) for group in self.groups)
        return ranks // self.shape.size // self.nodes

    @property
    def label(self) -> str:
        """A label such as `2 nodes x 4, strided`."""
        where = "1 node" if self.shape.nodes == 1 else f"{self.shape.nodes} nodes"
        if len(self.shape.counts) > 2:
            where += f" in {self.shape.counts[2]} racks"
        how = "consecutive" if self.shape.consecutive else "strided"
        of = f" of {', '.join(self.kinds)}" if self.kinds else ""
        return f"{where} x {self.shape.ranks_per_node}{of}, {how}"


def group_shapes(
    ranks: int, ranks_per_node: int, nodes_per_rack: int | None = None
) -> list[Siblings]:
    """Returns every shape of a group of two ranks or more, small groups first."""
    mesh = Mesh.place(ranks, ranks_per_node, nodes_per_rack)
    farthest: dict[tuple[tuple[int, ...], bool], tuple[int, Siblings]] = {}
    for count in range(1, len(mesh.axes) + 1):
        for axes in combinations(range(len(mesh.axes)), count):
            shape = mesh.group_shape(axes)
            groups = tuple(tuple(group) for group in mesh.groups(axes))
            reach = max(group[-1] - group[0] for group in groups)
            key = (shape.counts, shape.consecutive)
            if key not in farthest or reach > farthest[key][0]:
                farthest[key] = (reach, Siblings(shape, groups, mesh.nodes))
    shapes = [siblings for _, siblings in farthest.values()]
    return sorted(shapes, key=lambda s: (s.shape.size, s.shape.nodes, not s.shape.consecutive))
