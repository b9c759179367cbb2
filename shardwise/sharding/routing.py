"""Rows that may lie where their expert is: expert parallelism as a layout.

Between two products with the matrices of experts, `shardwise::expert_linear` (`capture/fused.py`),
every row (a copy of a token) belongs to one expert. A mesh axis that splits the experts may leave
these rows on every rank, whose results are then terms of a sum (variable `expert`: expert *tensor*
parallelism), or send each row to the rank that has its expert (variable `routed`: expert
parallelism, GShard §3.2). Sent rows are one more way to cut a tensor: a dimension after its own, as
long as there are experts, of which a share holds as many rows as its experts are chosen for. So
dispatch is the change from rows cut by tokens to rows cut by experts, an all_to_all; combination is
the change back; and everything that re-schedules, prices and replays layouts does so with these.

`Spread` is the extent of that dimension. A tensor of which rows may be sent has one
(`Tensor.extents`); operators on them have the variable `routed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.graph.graph import Graph, Operator, Spread
from shardwise.graph.semantics import Access, IndexVariable, OperatorSemantics

EXPERT_PRODUCT = "shardwise.expert_linear.default"
ROUTED = "routed"
"""The variable of experts whose rows are sent to them."""

COPY = "copy"
"""The variable of a token's copies, one for each of its experts, in products with experts."""

_BY_ROW = frozenset(
    f"aten.{name}"
    for name in ("chunk.default", "split.Tensor", "split_with_sizes.default", "slice.Tensor")
)
"""Views that cut each row alike, where they do not cut along rows."""


_ADD, _MUL = "aten.add.Tensor", "aten.mul.Tensor"


def weighted_rows(graph: Graph, op: Operator) -> int | None:
    """Returns which input of an operator are the experts' results, one row a token's copy, where it
    multiplies each row by one number, its router's score; None where it does something else.

    Libraries of fused kernels multiply before the last product instead, in the pass of the
    activation function (Megatron's weighted SwiGLU): p (W a) = W (p a). The score's gradient
    follows from what that pass keeps, so that the experts' results are not kept.
    """
    if op.kind != _MUL or len(op.inputs) != 2:
        return None
    for port, other in ((0, 1), (1, 0)):
        rows, scores = graph.tensors[op.inputs[port]], graph.tensors[op.inputs[other]]
        if scores.shape[-1:] != (1,) or rows.shape[-1:] == (1,):
            continue
        made_by = graph.producer.get(op.inputs[port])
        if made_by is not None and made_by.kind == _ADD:
            before = [graph.producer.get(name) for name in made_by.inputs]
        else:
            before = [made_by]
        if any(one is not None and one.kind == EXPERT_PRODUCT for one in before):
            return port
    return None


@dataclass(frozen=True)
class Routing:
    """The semantics of all operators of a graph, with `routed` where rows may be sent.

    `routes` names, by tensor, the tensor of the experts that its rows have chosen; `regions` those
    of operators.
    """

    graph: Graph
    semantics: dict[str, OperatorSemantics]
    routes: Mapping[str, str]
    regions: Mapping[str, str]


def with_routing(graph: Graph, semantics: Mapping[str, OperatorSemantics]) -> Routing:
    """Returns the graph, whose tensors say which rows may be sent, and its operators' semantics."""
    found = dict(semantics)
    routes: dict[str, str] = {}
    regions: dict[str, str] = {}
    products: dict[str, list[Operator]] = {}
    for op in graph.operators:
        if op.kind == EXPERT_PRODUCT and semantics[op.name].variables:
            products.setdefault(op.inputs[2], []).append(op)
    for route, of_route in products.items():
        _follow(_Region(graph, semantics, route, of_route), found, routes, regions)
    if not routes:
        return Routing(graph, found, routes, regions)
    experts = {
        route: graph.tensors[of_route[0].inputs[1]].shape[0] for route, of_route in products.items()
    }
    tensors = {
        name: t if name not in routes else replace(t, spread=Spread(experts[routes[name]]))
        for name, t in graph.tensors.items()
    }
    return Routing(Graph(graph.name, tensors, graph.operators), found, routes, regions)


@dataclass(frozen=True)
class _Region:
    """The operators on rows that have chosen by the same tensor, `route`, [tokens, copies]."""

    graph: Graph
    semantics: Mapping[str, OperatorSemantics]
    route: str
    products: list[Operator]

    @property
    def rows(self) -> tuple[int, ...]:
        return self.graph.tensors[self.route].shape

    def is_rows(self, name: str) -> bool:
        shape = self.graph.tensors[name].shape
        return len(shape) > len(self.rows) and shape[: len(self.rows)] == self.rows

    def between(self) -> list[Operator]:
        """Returns the operators that lie between two products and compute each row alone, and the
        look-ups of a row's own vector (the bias of its expert) that they read."""
        behind = {op.outputs[0] for op in self.products}
        alone: list[Operator] = []
        for op in self.graph.operators:
            if op in self.products or behind.isdisjoint(op.inputs):
                continue
            if self._by_row(op):
                alone.append(op)
                behind.update(op.outputs)
        before = {op.inputs[0] for op in self.products}
        chosen: list[Operator] = []
        for op in reversed(alone):
            if not before.isdisjoint(op.outputs):
                chosen.append(op)
                before.update(op.inputs)
        looked_up = [
            op
            for op in self.graph.operators
            if not before.isdisjoint(op.outputs) and self._is_look_up(op)
        ]
        return [*chosen, *looked_up]

    def _by_row(self, op: Operator) -> bool:
        semantics = self.semantics[op.name]
        if semantics.category != "elementwise" and op.kind not in _BY_ROW:
            return False
        ports = [*zip(op.inputs, semantics.inputs, strict=True)]
        ports += zip(op.outputs, semantics.outputs, strict=True)
        first = self._row_variables(semantics.outputs[0])
        return all(self.is_rows(name) for name in op.outputs) and all(
            self._row_variables(accesses) == first
            if self.is_rows(name)
            else first.isdisjoint(accesses)
            for name, accesses in ports
        )

    def _row_variables(self, accesses: Mapping[int, Access]) -> frozenset[int]:
        return frozenset(v for v, access in accesses.items() if access.dim < len(self.rows))

    def _is_look_up(self, op: Operator) -> bool:
        """Returns whether an operator reads of a parameter what belongs to each row's expert."""
        return (
            op.kind == "aten.index.Tensor"
            and len(op.inputs) == 2
            and op.inputs[1] == self.route
            and self.graph.tensors[op.inputs[0]].role == "parameter"
        )


def _follow(
    region: _Region,
    found: dict[str, OperatorSemantics],
    routes: dict[str, str],
    regions: dict[str, str],
) -> None:
    """Adds `routed` to the operators of a region, and to what makes the products' matrices."""
    experts = region.graph.tensors[region.products[0].inputs[1]].shape[0]
    for op in [*region.products, *region.between()]:
        semantics = region.semantics[op.name]
        sent = [n for n in (*op.inputs, *op.outputs) if region.is_rows(n) or n == region.route]
        inputs = [_sent(region, name) for name in op.inputs]
        if op in region.products:
            inputs[1] = Access(0)
            _on_matrices(region, op.inputs[1], 0, experts, found)
        outputs = [_sent(region, name) for name in op.outputs]
        found[op.name] = _with_variable(semantics, experts, inputs, outputs)
        routes.update(dict.fromkeys(sent, region.route))
        regions[op.name] = region.route


def _sent(region: _Region, name: str) -> Access | None:
    """Returns how `routed` indexes a tensor: rows and the experts that they have chosen."""
    if not region.is_rows(name) and name != region.route:
        return None
    return Access(len(region.graph.tensors[name].shape))


def _on_matrices(
    region: _Region, name: str, dim: int, experts: int, found: dict[str, OperatorSemantics]
) -> None:
    """Lets operators on parameters alone that make a product's matrices be cut by `routed` too."""
    op = region.graph.producer.get(name)
    while op is not None:
        semantics = region.semantics[op.name]
        output = semantics.outputs[op.outputs.index(name)]
        variable = next((v for v, access in output.items() if access.dim == dim), None)
        if variable is None or any(v.name == ROUTED for v in found[op.name].variables):
            return
        inputs = [accesses.get(variable) for accesses in semantics.inputs]
        outputs = [accesses.get(variable) for accesses in semantics.outputs]
        found[op.name] = _with_variable(found[op.name], experts, inputs, outputs)
        read = [(n, a.dim) for n, a in zip(op.inputs, inputs, strict=True) if a is not None]
        if not read:
            return
        name, dim = read[0]
        op = region.graph.producer.get(name)


def _with_variable(
    semantics: OperatorSemantics,
    experts: int,
    inputs: list[Access | None],
    outputs: list[Access | None],
) -> OperatorSemantics:
    number = len(semantics.variables)

    def added(by: dict[int, Access], access: Access | None) -> dict[int, Access]:
        return by if access is None else {**by, number: access}

    return replace(
        semantics,
        variables=(*semantics.variables, IndexVariable(ROUTED, Spread(experts))),
        inputs=tuple(map(added, semantics.inputs, inputs)),
        outputs=tuple(map(added, semantics.outputs, outputs)),
    )
