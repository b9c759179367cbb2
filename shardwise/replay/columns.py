"""A group's cost terms as columns for replay: the time of every task, the size of every buffer.

A view of `shardwise.cost.terms` under each configuration (arrays of length K), with forward and
backward separate, per member and parameter, and flags for what happens at all. Columns are computed
on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.context import CostContext
from shardwise.cost.exchanges import ring_bytes, ring_steps
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.parameters import ParameterTerms
from shardwise.cost.terms import GroupTerms
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.replay.footprint import Dims, Size
from shardwise.replay.numbered import Columns, column
from shardwise.sharding.layout import Floats, Layouts, encode, part_of
from shardwise.sharding.operator_layouts import LayoutRows
from shardwise.sharding.pattern import GroupPattern

FORWARD, BACKWARD = 0, 1

T = TypeVar("T", bound=np.generic)


class GroupTable(Columns):
    """Columns over the configurations of all groups that share their costs.

    Such groups differ only in names, so columns are addressed by position.
    """

    def __init__(self, context: CostContext, pattern: GroupPattern, costs: GroupCosts) -> None:
        """`context` may differ from that of the costs: another place of a cluster, or other
        links."""
        super().__init__(len(costs.base))
        self.pattern = pattern
        self.terms = costs.terms
        if self.terms.work.context is not context:
            self.terms = GroupTerms(self.terms.work.at(context))
        self.work = self.terms.work
        self._costs = costs
        self._base = costs.base
        self.places: Sequence[GroupTable] = (self,)
        """The tables of the same groups at all places, on several kinds of devices."""
        self._communicates: dict[tuple[int, int], bool] = {}
        self._moves: dict[tuple[int, int], bool] = {}
        self._rings: dict[int, bool] = {}

    def _facts(self) -> dict[tuple[str, Any], Any]:
        facts: dict[tuple[str, Any], Any] = {
            ("variants", None): (self.may_recompute, self.shards_weights, self.shards_gradients),
            ("inputs", None): (self.loads, self.work.kept_windows),
        }
        facts |= {("ring", (where,)): does for where, does in self._rings.items()}
        facts |= {("communicates", where): does for where, does in self._communicates.items()}
        return facts | {("moves", where): does for where, does in self._moves.items()}

    def _find(self, fact: str, where: tuple[int, ...]) -> None:
        if fact == "communicates":
            self.communicates(*where)
        elif fact == "moves":
            self.moves(*where)
        elif fact == "ring":
            self.goes_round(*where)

    def _present(self, values: Floats) -> Floats:
        return self.work.context.mesh.where_present(values, self._costs.proportion)

    def _of_each(self, values: NDArray[T]) -> NDArray[T]:
        """Returns each configuration's value, from values by assignment."""
        return values[self._base]

    # Members

    @cached_property
    def may_recompute(self) -> bool:
        """Whether any configuration recomputes forward in backward."""
        return bool(self._costs.recompute.any())

    @column
    def recomputes(self, *, negated: bool = False) -> int:
        """Flag: forward is recomputed in backward."""
        return self._column(("recomputes", negated), lambda: self._costs.recompute != negated)

    @column
    def where_recomputed(self, column: int, recomputes: bool) -> int:
        """Returns another column if forward is recomputed (or if it is not), else 0."""
        return self._column(
            ("where recomputed", column, recomputes),
            lambda: np.where(self._costs.recompute == recomputes, self._columns[column], 0.0),
        )

    @column
    def compute_s(self, position: int, direction: int, *, recompute: bool = False) -> int:
        """Returns a member's computation.

        `recompute`: that of recomputing forward, 0 where it is not recomputed.
        """
        passes = self.terms.compute
        of = passes.backward_s if direction == BACKWARD else passes.forward_s
        return self._pass_s("compute", of, position, direction, recompute)

    @column
    def part_s(self, position: int, *, weights: bool) -> int:
        """Returns a member's computation of gradients of weights, or what else backward
        computes, where backward is split."""

        def seconds() -> Floats:
            of_weights = self.terms.weights_s[:, position]
            whole = self.terms.compute.backward_s[:, position]
            return self._of_each(of_weights if weights else whole - of_weights)

        return self._column(("part", position, weights), seconds)

    @column
    def communication_s(self, position: int, direction: int, *, recompute: bool = False) -> int:
        """Returns the statistics, halos and moves that a member waits for."""
        passes = self.terms.communication
        of = passes.backward_s if direction == BACKWARD else passes.forward_s
        return self._pass_s("communication", of, position, direction, recompute)

    def _pass_s(self, what: str, of: Floats, position: int, direction: int, recompute: bool) -> int:
        def seconds() -> Floats:
            each = self._of_each(of[:, position])
            return self._recomputed(each) if recompute else each

        return self._column((what, position, direction, recompute), seconds)

    def _recomputed(self, values: Floats) -> Floats:
        """Returns the values if forward is recomputed, else 0."""
        return np.where(self._costs.recompute, values, 0.0)

    def goes_round(self, position: int) -> bool:
        """Returns whether a member's keys and values travel around a ring under any configuration,
        at any place."""
        if position not in self._rings:
            self._rings[position] = any(
                ring_bytes(table.work, position)[0].any() for table in self.places
            )
        return self._rings[position]

    @column
    def beside_ring_s(self, position: int, direction: int, *, recompute: bool = False) -> int:
        """Returns a member's computation during the ring exchange, of all blocks but the last; 0
        without a ring."""

        def seconds() -> Floats:
            of = self._columns[self.compute_s(position, direction, recompute=recompute)]
            return of * (1.0 - 1.0 / self._of_each(ring_steps(self.work, position)))

        return self._column(("beside ring", position, direction, recompute), seconds)

    @column
    def after_ring_s(self, position: int, direction: int, *, recompute: bool = False) -> int:
        """Returns a member's computation of the last block; all of it without a ring."""

        def seconds() -> Floats:
            of = self._columns[self.compute_s(position, direction, recompute=recompute)]
            return of / self._of_each(ring_steps(self.work, position))

        return self._column(("after ring", position, direction, recompute), seconds)

    @column
    def ring_bytes(self, position: int, direction: int, *, recompute: bool = False) -> int:
        """Returns a member's bytes during the ring exchange: two blocks, and in backward the
        gradients being made, sent and received."""

        def size() -> Floats:
            block, gradients = ring_bytes(self.work, position)
            held = self._of_each(2.0 * block + (3.0 * gradients if direction == BACKWARD else 0.0))
            return self._recomputed(held) if recompute else held

        return self._column(("ring", position, direction, recompute), size)

    def communicates(self, position: int, direction: int) -> bool:
        """Returns whether a member waits for communication under any configuration, anywhere."""
        if (position, direction) not in self._communicates:
            does = any(table.communicates_here(position, direction) for table in self.places)
            self._communicates[position, direction] = does
        return self._communicates[position, direction]

    def communicates_here(self, position: int, direction: int) -> bool:
        """Returns whether a member waits for communication under any configuration at this
        place."""
        passes = self.terms.communication
        of = passes.backward_s if direction == BACKWARD else passes.forward_s
        return bool(of[:, position].any())

    # Moves between members

    def moves(self, position: int, port: int) -> bool:
        """Returns whether any configuration moves this input between members."""
        if (position, port) not in self._moves:
            self._moves[position, port] = self._any_moves(position, port)
        return self._moves[position, port]

    def _any_moves(self, position: int, port: int) -> bool:
        name = self.pattern.members[position].operator.inputs[port]
        source, wanted = self._move(position, port)
        return not self.work.is_fixed(name) and not self.work.agree(name, source, wanted)

    @column
    def moved(self, position: int, port: int, direction: int, *, negated: bool = False) -> int:
        """Flag: the input (backward: its gradient) is read in another layout than it is stored
        in."""
        return self._column(
            ("moved", position, port, direction, negated),
            lambda: self._differs(position, port, direction) != negated,
        )

    @column
    def moved_bytes(
        self, position: int, port: int, direction: int, *, recompute: bool = False
    ) -> int:
        """Returns the bytes of the copy made by a move between members, of the input or of its
        gradient."""

        def size() -> Floats:
            source, wanted = self._move(position, port)
            name = self.pattern.members[position].operator.inputs[port]
            layouts = source[1] if direction == BACKWARD else wanted[0]
            moved = self._differs(position, port, direction)
            if recompute:
                moved = moved & self._costs.recompute
            return np.where(moved, self._of_each(self.work.local_bytes(name, layouts)), 0.0)

        return self._column(("moved bytes", position, port, direction, recompute), size)

    @column
    def staged_bytes(self, position: int, *, recompute: bool = False) -> int:
        """Returns the maximum bytes that a member's moves hold besides their inputs and outputs
        (`staging.py`)."""

        def most() -> Floats:
            staged_bytes = self._of_each(self.work.staged_bytes(position))
            return self._recomputed(staged_bytes) if recompute else staged_bytes

        return self._column(("staged moves", position, recompute), most)

    def _differs(self, position: int, port: int, direction: int) -> NDArray[np.bool_]:
        source, wanted = self._move(position, port)
        return self._of_each(encode(source[direction]) != encode(wanted[direction]))

    def _move(self, position: int, port: int) -> tuple[LayoutRows, LayoutRows]:
        name = self.pattern.members[position].operator.inputs[port]
        return self.work.output_layouts.get(name) or self.work.input_layouts[
            name
        ], self.work.inputs[position][port]

    # Inputs of the graph

    @column
    def loading_s(self, position: int) -> int:
        """Returns the seconds of re-scheduling the graph's inputs that a member is the first to
        read."""
        return self._column(
            ("loading", position), lambda: self._of_each(self.terms.loading_s[:, position])
        )

    @cached_property
    def loads(self) -> list[tuple[int, int]]:
        """The graph's inputs by the member that reads them first, and its port."""
        return [
            (position, self.pattern.members[position].operator.inputs.index(name))
            for position, name in self.work.loads
        ]

    @column
    def loaded_bytes(self, position: int, port: int) -> int:
        """Returns the bytes of the copy that loading makes if an input arrives in another
        layout."""
        name = self.pattern.members[position].operator.inputs[port]

        def size() -> Floats:
            arriving = encode(self.work.arriving_layouts(name))
            wanted = self.work.input_layouts[name][0]
            copied = encode(wanted) != arriving
            return self._of_each(np.where(copied, self.work.local_bytes(name, wanted), 0.0))

        return self._column(("loaded", position, port), size)

    @column
    def arriving_bytes(self, position: int, port: int, block_bytes: int) -> int:
        """Returns the bytes of an input on arrival, for all micro-batches in whole blocks."""
        name = self.pattern.members[position].operator.inputs[port]

        def size() -> Floats:
            one = self.work.local_bytes(name, self.work.arriving_layouts(name))
            blocks = np.ceil(one / block_bytes) * block_bytes
            return self._of_each(self.work.context.micro_batches * blocks)

        return self._column(("arriving", position, port, block_bytes), size)

    # Bytes of members

    @column
    def input_bytes(self, position: int, port: int) -> int:
        """Returns the share of an input that a member reads; its gradient is as large. 0 where it
        is never in memory."""
        item = self._item_in_memory(self.pattern.members[position].operator.inputs[port])
        return self.size(position, Size(item, (Dims(False, port),)))

    @column
    def output_bytes(self, position: int, port: int, *, recompute: bool = False) -> int:
        """Returns the share of an output that a member makes; its gradient is as large. 0 where it
        is never in memory."""
        item = self._item_in_memory(self.pattern.members[position].operator.outputs[port])
        return self.size(position, Size(item, (Dims(True, port),)), recompute=recompute)

    @column
    def size(self, position: int, size: Size, *, recompute: bool = False) -> int:
        """Returns a buffer of a member.

        `recompute`: that of recomputing forward, 0 where it is not recomputed.
        """

        def values() -> Floats:
            result = np.full(self.work.count, float(size.item_bytes))
            for span in size.spans:
                result *= self._span(position, span)
            result = self._of_each(result)
            return self._recomputed(result) if recompute else result

        return self._column(("size", position, size, recompute), values)

    @column
    def window_bytes(self, position: int, port: int, *, recompute: bool = False) -> int:
        """Returns an input with its neighbours' rows, as `GroupWork.window_bytes`."""

        def values() -> Floats:
            result = self._of_each(self.work.window_bytes(position, port))
            return self._recomputed(result) if recompute else result

        return self._column(("window", position, port, recompute), values)

    @column
    def as_it_is(self, position: int, port: int) -> int:
        """Flag: an input is read without `window_bytes`."""
        return self._column(
            ("as it is", position, port),
            lambda: self._of_each(self.work.window_bytes(position, port) == 0.0),
        )

    def _span(self, position: int, span: Dims) -> Floats:
        op = self.pattern.members[position].operator
        name = (op.outputs if span.output else op.inputs)[span.position]
        ports = self.work.outputs if span.output else self.work.inputs
        layouts = ports[position][span.position][0]
        tensor = self.work.tensors[name]
        dims = tuple(range(len(tensor.extents))) if span.dims is None else span.dims
        if tensor.spread is not None and 0 in dims and span.dims is not None:
            dims = (*dims, len(tensor.shape))  # of rows as many as are sent here
        return self._local(tensor.extents, layouts, dims)

    def _local(self, extents: tuple[int, ...], layouts: Layouts, dims: tuple[int, ...]) -> Floats:
        count = np.ones(self.work.count)
        for dim in dims:
            parts = np.where(layouts == dim, self.work.sizes, 1).prod(axis=1)
            count *= part_of(extents[dim], parts)
        return count

    def _item(self, name: str) -> int:
        return DTYPE_BYTES[self.work.tensors[name].dtype]

    def _item_in_memory(self, name: str) -> int:
        in_memory = self.work.context.patterns.is_in_memory(name)
        return self._item(name) if in_memory else 0

    # Parameters

    @cached_property
    def _terms(self) -> list[tuple[NDArray[np.int64], ParameterTerms]]:
        """Distinct assignments' configurations, and the parameter terms under their ZeRO stages,
        kinds of gradient sum and axes."""
        costs = self._costs
        parts = []
        for kind in sorted(set(zip(costs.zero.tolist(), costs.gradient_sum.tolist(), strict=True))):
            rows = np.flatnonzero((costs.zero == kind[0]) & (costs.gradient_sum == kind[1]))
            while len(rows):
                _, first = np.unique(self._base[rows], return_index=True)
                axes = np.zeros(self.work.count, dtype=np.int64)
                axes[self._base[rows[first]]] = costs.zero_axes[rows[first]]
                parts.append((rows[first], self.terms.parameters(*kind, axes)))
                rows = np.delete(rows, first)
        return parts

    @column
    def parameter(self, number: int, field: str) -> int:
        """Returns a field of `ParameterTerms` (bytes or seconds) of one parameter."""

        def values() -> Floats:
            result = np.zeros(len(self._base))
            for rows, terms in self._terms:
                result[rows] = getattr(terms, field)[self._base[rows], number]
            return result

        return self._column(("parameter", number, field), values)

    @cached_property
    def shards_weights(self) -> bool:
        """Whether parameters are sharded under any configuration (ZeRO stage 3)."""
        return bool((self._costs.zero == 3).any())

    @cached_property
    def shards_gradients(self) -> bool:
        """Whether micro-batches scatter gradients under any configuration (ZeRO stage 2 or 3)."""
        context = self.work.context
        scatters = context.options.step.scatters(2, context.micro_batches)
        return scatters and bool((self._costs.zero >= 2).any())

    @column
    def lasting_bytes(self, number: int) -> int:
        """Returns the bytes of a parameter with its optimizer state, and its gradient if that is
        permanent."""
        fields = ["weight_bytes", "state_bytes"]
        item = self._item(self.pattern.parameters[number])
        if self.work.context.options.step.has_main_gradient(item):
            fields.append("gradient_bytes")
        return self._column(
            ("lasting", number),
            lambda: sum(
                (self._columns[self.parameter(number, field)] for field in fields), np.zeros(1)
            ),
        )

    @column
    def whole_bytes(self, number: int) -> int:
        """Returns the bytes of a gathered parameter, not sharded by ZeRO."""
        name = self.pattern.parameters[number]
        return self._column(
            ("whole", number), lambda: self._of_each(self.work.gathered_bytes(name))
        )

    @column
    def stage(self, *stages: int) -> int:
        """Flag: the ZeRO stage is one of these."""
        return self._column(("stage", stages), lambda: np.isin(self._costs.zero, stages))

    @column
    def staged(self, column: int, *stages: int) -> int:
        """Returns another column if the stage is one of these, else 0."""
        return self._column(
            ("staged", column, stages),
            lambda: np.where(np.isin(self._costs.zero, stages), self._columns[column], 0.0),
        )

    @column
    def state_elements_bytes(self, number: int, item_bytes: int) -> int:
        """Returns a temporary of the update: `item_bytes` per element that this device updates."""
        name = self.pattern.parameters[number]
        each = self.work.context.options.state_bytes_per_element(self._item(name))

        def size() -> Floats:
            if each:
                state = self._columns[self.parameter(number, "state_bytes")]
                return np.asarray(state / each * item_bytes)
            gradient = self._columns[self.parameter(number, "gradient_bytes")]
            kept = self.work.context.options.step.gradient_bytes(self._item(name))
            return np.asarray(gradient / kept * item_bytes)

        return self._column(("update", number, item_bytes), size)
