"""The terms of a group's costs one by one, for replay: every task's time, every buffer's size.

The same terms as in `group_costs.py`, under each configuration (arrays of length K), but not yet
summed: forward apart from backward, member by member, parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from shardwise.advise.footprint import Size
from shardwise.advise.group_costs import CostContext, GroupWork
from shardwise.advise.layout import Floats, Layouts, encode
from shardwise.advise.options import OPTIMIZER_STATE_BYTES
from shardwise.advise.pattern import GroupPattern
from shardwise.graph.graph import DTYPE_BYTES


class GroupTable(GroupWork):
    """Columns over the configurations of all groups with one pattern, made when first asked for.

    Groups that share a pattern differ in names only, so columns are asked for by position.
    """

    def __init__(self, context: CostContext, pattern: GroupPattern) -> None:
        super().__init__(context, pattern)
        self.register()
        self._columns: list[Floats] = []
        self._known: dict[Hashable, int] = {}

    def values(self) -> Floats:
        """All columns, shape (K, columns)."""
        if not self._columns:
            return np.zeros((self.count, 0))
        return np.stack(self._columns, axis=1)

    def _column(self, key: Hashable, make: Callable[[], Floats]) -> int:
        if key not in self._known:
            self._known[key] = len(self._columns)
            self._columns.append(np.broadcast_to(make(), (self.count,)).astype(np.float64))
        return self._known[key]

    # Seconds

    def forward_s(self, position: int) -> int:
        """A member's forward computation."""
        return self._column(("forward", position), lambda: self._member_s(position)[0])

    def backward_s(self, position: int) -> int:
        """A member's backward computation."""
        return self._column(("backward", position), lambda: self._member_s(position)[1])

    def update_s(self, parameter: int) -> int:
        """The optimizer's update of the pattern's parameter of that number."""
        name = self.pattern.parameters[parameter]
        return self._column(("update", parameter), lambda: self._update_s(name))

    def synchronisation(self, parameter: int) -> int:
        """The sum of a parameter's gradient over its replicas."""
        name = self.pattern.parameters[parameter]
        return self._column(("sync", parameter), lambda: self._synchronisation_s(name))

    def statistics(self, position: int) -> int:
        """Statistics of a member made whole, once: backward takes as long again."""
        return self._column(("statistics", position), lambda: self._statistics_s(position))

    def halo(self, position: int, port: int) -> int:
        """The exchange of rows around an input's share, once."""
        return self._column(("halo", position, port), lambda: self._halo_s(position, port))

    def move_s(self, position: int, port: int, *, backward: bool) -> int:
        """Re-scheduling of an input between members of the group."""

        def seconds() -> Floats:
            source, wanted = self._move(position, port)
            name = self.pattern.members[position].operator.inputs[port]
            a, b = (wanted[1], source[1]) if backward else (source[0], wanted[0])
            paths = self._paths(name)
            return paths.distance(paths.register(a), paths.register(b))

        return self._column(("move", position, port, backward), seconds)

    # Flags

    def moves(self, position: int, port: int) -> bool:
        """Whether any configuration moves this input between members."""
        name = self.pattern.members[position].operator.inputs[port]
        source, wanted = self._move(position, port)
        return not self._is_fixed(name) and not self._agree(name, source, wanted)

    def moved(self, position: int, port: int, *, backward: bool) -> int:
        """Whether the input (its gradient, `backward`) is read otherwise than it is there."""
        return self._column(
            ("moved", position, port, backward),
            lambda: self._differs(position, port, backward).astype(np.float64),
        )

    def same(self, position: int, port: int, *, backward: bool) -> int:
        """The opposite of `moved`."""
        return self._column(
            ("same", position, port, backward),
            lambda: 1.0 - self._differs(position, port, backward),
        )

    def _differs(self, position: int, port: int, backward: bool) -> NDArray[np.bool_]:
        source, wanted = self._move(position, port)
        return encode(source[backward]) != encode(wanted[backward])

    def has_halo(self, position: int, port: int) -> bool:
        """Whether splitting may leave rows of this input at neighbours."""
        accesses = self.pattern.members[position].semantics.inputs[port].values()
        return any(access.halo_before + access.halo_after for access in accesses)

    def _move(
        self, position: int, port: int
    ) -> tuple[tuple[Layouts, Layouts], tuple[Layouts, Layouts]]:
        name = self.pattern.members[position].operator.inputs[port]
        return self.made.get(name) or self.read[name], self.inputs[position][port]

    # Bytes

    def input_bytes(self, position: int, port: int) -> int:
        """The share of an input that a member reads; its gradient is as large."""
        item = self._item(self.pattern.members[position].operator.inputs[port])
        return self.size(position, Size(False, port, item))

    def output_bytes(self, position: int, port: int) -> int:
        """The share of an output that a member makes; its gradient is as large."""
        item = self._item(self.pattern.members[position].operator.outputs[port])
        return self.size(position, Size(True, port, item))

    def moved_bytes(self, position: int, port: int, *, backward: bool) -> int:
        """The copy that a move between members makes, of the input or of its gradient."""

        def size() -> Floats:
            source, wanted = self._move(position, port)
            name = self.pattern.members[position].operator.inputs[port]
            layouts = source[1] if backward else wanted[0]
            copy = self._local(name, layouts, tuple(range(len(self.tensors[name].shape))))
            return np.where(self._differs(position, port, backward), copy * self._item(name), 0.0)

        return self._column(("moved bytes", position, port, backward), size)

    def read_bytes(self, position: int, port: int) -> int:
        """The share of an input as the group first reads it."""
        name = self.pattern.members[position].operator.inputs[port]
        dims = tuple(range(len(self.tensors[name].shape)))
        return self._column(
            ("read", name),
            lambda: self._local(name, self.read[name][0], dims) * self._item(name),
        )

    def size(self, position: int, size: Size) -> int:
        """A buffer of a member."""
        op = self.pattern.members[position].operator
        name = (op.outputs if size.output else op.inputs)[size.position]
        layouts = (self.outputs if size.output else self.inputs)[position][size.position][0]
        dims = tuple(range(len(self.tensors[name].shape))) if size.dims is None else size.dims
        return self._column(
            ("size", position, size.output, size.position, size.item_bytes, dims),
            lambda: self._local(name, layouts, dims) * size.item_bytes,
        )

    def parameter(self, parameter: int, bytes_per_element: float) -> int:
        """So many bytes for every element of a parameter's share."""
        name = self.pattern.parameters[parameter]
        dims = tuple(range(len(self.tensors[name].shape)))
        return self._column(
            ("parameter", parameter, bytes_per_element),
            lambda: self._local(name, self.read[name][0], dims) * bytes_per_element,
        )

    def state_bytes_per_element(self, name: str) -> int:
        """Of the optimizer, in bytes."""
        plain, with_master = OPTIMIZER_STATE_BYTES[self.context.options.optimizer]
        return with_master if self._item(name) < 4 else plain

    def _local(self, name: str, layouts: Layouts, dims: tuple[int, ...]) -> Floats:
        count = np.ones(self.count)
        shape = self.tensors[name].shape
        for dim in dims:
            parts = np.where(layouts == dim, self.sizes, 1).prod(axis=1)
            count *= np.ceil(shape[dim] / parts)
        return count

    def _item(self, name: str) -> int:
        return DTYPE_BYTES[self.tensors[name].dtype]
