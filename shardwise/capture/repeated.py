"""Traces the repeated layers of a model once, and copies their operators in the graph.

**The law.** Layers of a list repeat with period p from layer s on (`layers.py`). A module that has
only the first a = s + 2p of them and the last few, m·p fewer than the whole one, has a graph G. Of
the whole module's graph it is all but m·p layers, and those are copies of the layers a-p … a-1:

- The c-th copy (c = 1 … m) has the numbers of these layers plus c·p in the names of its operators
  and tensors. What it reads of a layer j ≥ s becomes the same of layer j + c·p; what it reads of
  earlier layers, or from outside the list, stays.
- Layers from a on, and what comes after the layers, have their numbers raised by m·p: their own,
  and those of all layers j ≥ s that they read.
- A copy comes after the layer a-1, among the operators and wherever layers follow one another among
  the tensors (parameters, buffers, activations).

**What is checked** before the law is used, besides how all layers are built:

- All operators of layers are named after their layer, follow one another, and belong to layers in
  ascending order.
- In G every layer from s + 2p on equals, by the same renaming, the layer p before it. The last
  layers in G are the model's own last layers, so a layer that asks for its own number is found out.
- G with m = 1 equals, operator for operator, the graph of the module with one period more.

Otherwise the whole module is traced, as it is if it has no such list. The graph is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from shardwise.capture.convert import to_graph
from shardwise.capture.export import export
from shardwise.capture.layers import (
    HEAD,
    WORTHWHILE,
    RepeatedLayers,
    find_repeated_layers,
    shortened,
)
from shardwise.capture.model import Model
from shardwise.capture.naming import Names
from shardwise.errors import CaptureError
from shardwise.graph.graph import Graph, Operator, Tensor

Stages = Callable[[str, float], object]
"""Is told what a capture does now, and which share of it is done."""


def trace(model: Model, source: str, name: str, stages: Stages) -> Graph:
    """Returns the graph of a model that was built for this capture alone.

    The model is changed while it is traced. Raises CaptureError for what has no static form.
    """
    return trace_repeated(model, source, name, stages) or trace_whole(model, source, name, stages)


def trace_whole(model: Model, source: str, name: str, stages: Stages) -> Graph:
    """Returns the graph of a model, traced as it is; raises CaptureError as `trace` does."""
    stages("tracing the model", 0.3)
    return to_graph(export(model, source), model, name)


def trace_repeated(
    model: Model, source: str, name: str, stages: Stages, worthwhile: float = WORTHWHILE
) -> Graph | None:
    """Returns the graph of a model with repeated layers, of which a few are traced.

    Returns None where no list of layers is worth it (`find_repeated_layers`), or the law does not
    hold.
    """
    lists = find_repeated_layers(model.module, worthwhile)
    if not lists:
        return None
    try:
        few, more = (_trace_part(model, lists, periods, source, name, stages) for periods in (2, 3))
        stages("repeating layers", 0.8)
        names = Names(model.prefix)
        for layers in lists:
            _check_layers(few, _Places.of(layers, names))
        if not _equal(_repeat(few, lists, names, once=True), more):
            return None
        return _repeat(few, lists, names)
    except (CaptureError, _Differs):
        return None


def _trace_part(
    model: Model,
    lists: Sequence[RepeatedLayers],
    periods: int,
    source: str,
    name: str,
    stages: Stages,
) -> Graph:
    traced = sum(len(layers.kept(periods)) for layers in lists)
    total = sum(layers.count for layers in lists)
    stages(f"tracing {traced} of {total} layers", 0.3 * (periods - 1))
    with shortened(model.module, lists, periods):
        return to_graph(export(model, source), model, name)


def _repeat(
    graph: Graph, lists: Sequence[RepeatedLayers], names: Names, once: bool = False
) -> Graph:
    for layers in lists:
        left_out = (layers.count - len(layers.kept())) // layers.period
        graph = repeat_layers(graph, _Places.of(layers, names), 1 if once else left_out)
    return graph


def _equal(first: Graph, second: Graph) -> bool:
    """Returns whether graphs are equal, also in the order of their tensors."""
    return first == second and list(first.tensors) == list(second.tensors)


class _Differs(Exception):
    """The layers of a graph do not repeat."""


@dataclass(frozen=True)
class _Places:
    """Where the layers of one list are in a graph: their names, and s, p and a of the law."""

    pattern: re.Pattern[str]
    start: int
    period: int
    end: int

    @classmethod
    def of(cls, layers: RepeatedLayers, names: Names) -> _Places:
        """Returns the places in the graph of the module that keeps `HEAD` periods."""
        path = re.escape(names.short(layers.path))
        # `layers.3.norm.mul`, and `layers.3@1.mul` where a layer runs twice.
        pattern = re.compile(rf"({path}\.)(\d+)(?=[.@]|$)")
        return cls(pattern, layers.start, layers.period, layers.end_of_head(HEAD))

    def layer(self, name: str) -> int | None:
        """Returns the number of the layer that a name belongs to; None if to none."""
        match = self.pattern.match(name)
        return None if match is None else int(match[2])

    def raised(self, name: str, by: int, start: int) -> str:
        """Returns the name of the counterpart `by` layers later; names before `start` stay."""
        match = self.pattern.match(name)
        if match is None or int(match[2]) < start:
            return name
        return f"{match[1]}{int(match[2]) + by}{name[match.end() :]}"

    def operator(self, op: Operator, by: int) -> Operator:
        """Returns an operator of a layer from s on, or of what follows the layers, `by` later."""

        def raised(name: str) -> str:
            return self.raised(name, by, self.start)

        return replace(
            op,
            name=raised(op.name),
            inputs=tuple(map(raised, op.inputs)),
            outputs=tuple(map(raised, op.outputs)),
            scope=raised(op.scope),
        )

    def tensor(self, tensor: Tensor, by: int) -> Tensor:
        """Returns a tensor of a layer from s on in the layer that is `by` later."""
        return replace(tensor, name=self.raised(tensor.name, by, self.start))


def repeat_layers(graph: Graph, places: _Places, times: int) -> Graph:
    """Returns the graph of the module with `times` more periods, by the law of this module."""
    return Graph(
        graph.name,
        {tensor.name: tensor for tensor in _repeated_tensors(graph, places, times)},
        tuple(_repeated_operators(graph, places, times)),
    )


def _repeated_operators(graph: Graph, places: _Places, times: int) -> Iterator[Operator]:
    numbers = [places.layer(op.scope) for op in graph.operators]
    last = max(i for i, number in enumerate(numbers) if number is not None and number < places.end)
    yield from graph.operators[: last + 1]
    template = [
        op
        for op, number in zip(graph.operators, numbers, strict=True)
        if number is not None and places.end - places.period <= number < places.end
    ]
    for copy in range(1, times + 1):
        for op in template:
            yield places.operator(op, copy * places.period)
    for op in graph.operators[last + 1 :]:
        yield places.operator(op, times * places.period)


def _repeated_tensors(graph: Graph, places: _Places, times: int) -> Iterator[Tensor]:
    for inside, group in groupby(
        graph.tensors.values(), key=lambda tensor: places.layer(tensor.name) is not None
    ):
        if not inside:
            yield from group
            continue
        numbered = [(places.layer(tensor.name) or 0, tensor) for tensor in group]
        _check_ascending(number for number, _ in numbered)
        yield from (tensor for number, tensor in numbered if number < places.end)
        for copy in range(1, times + 1):
            for number, tensor in numbered:
                if places.end - places.period <= number < places.end:
                    yield places.tensor(tensor, copy * places.period)
        for number, tensor in numbered:
            if number >= places.end:
                yield places.tensor(tensor, times * places.period)


def _check_layers(graph: Graph, places: _Places) -> None:
    """Raises _Differs unless the operators of layers are in order, and the layers equal."""
    numbers = [places.layer(op.scope) for op in graph.operators]
    inside = [i for i, number in enumerate(numbers) if number is not None]
    if not inside or inside[-1] - inside[0] + 1 != len(inside):
        raise _Differs
    _check_ascending(numbers[i] or 0 for i in inside)
    layers = {
        number: list(group)
        for number, group in groupby(
            graph.operators[inside[0] : inside[-1] + 1], key=lambda op: places.layer(op.scope) or 0
        )
    }
    for number in range(places.end, max(layers) + 1):
        earlier = layers.get(number - places.period, [])
        if [places.operator(op, places.period) for op in earlier] != layers.get(number):
            raise _Differs
        _check_tensors(graph, places, earlier)


def _check_tensors(graph: Graph, places: _Places, ops: Iterable[Operator]) -> None:
    """Raises _Differs unless the operators read and produce the same tensors one period later."""
    for op in ops:
        if places.layer(op.name) is None:
            raise _Differs
        for name in (*op.inputs, *op.outputs):
            later = places.tensor(graph.tensors[name], places.period)
            if graph.tensors.get(later.name) != later:
                raise _Differs


def _check_ascending(numbers: Iterable[int]) -> None:
    before = -1
    for number in numbers:
        if number < before:
            raise _Differs
        before = number
