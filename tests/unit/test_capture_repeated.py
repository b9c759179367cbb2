"""Repeated layers are traced once, or the whole module is: the graph is the same."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from shardwise.capture.layers import RepeatedLayers, find_repeated_layers, shortened
from shardwise.capture.model import Model
from shardwise.capture.repeated import trace, trace_repeated, trace_whole
from shardwise.graph import graph_id
from shardwise.graph.document import canonical_json

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch

ANY = 9.0
"""How much may be traced in all: whatever it costs."""


class Layer(nn.Module):  # type: ignore[misc,name-defined]
    """Computes x + linear(x), then what the test is about; `number` is the layer's own."""

    def __init__(self, number: int, body: Callable[[Any, Any], Any], width: int = 4) -> None:
        super().__init__()
        self.number = number
        self.linear = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4))
        self.register_buffer("scale", torch.ones(4))
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(self, x + self.linear(x) * self.scale)


def as_it_is(layer: Any, x: Any) -> Any:
    return x


class Net(nn.Module):  # type: ignore[misc,name-defined]
    """Layers with something before and after them, and the sum of the outputs."""

    def __init__(self, layers: list[Any], run: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.layers = nn.ModuleList(layers)
        self.after = nn.Linear(4, 4)
        self.run = run

    def forward(self, x: Any) -> Any:
        x = self.before(x)
        if self.run is not None:
            return self.after(self.run(self, x)).sum()
        for layer in self.layers:
            x = layer(x)
        return self.after(x).sum()


def seen(stage: str, fraction: float) -> None:
    STAGES.append(stage)


STAGES: list[str] = []


def model(net: Any) -> Model:
    return Model(net.to("meta"), (torch.empty(2, 4, device="meta"),))


def equal(net: Any) -> bool:
    """Returns whether the layers were traced once; the graph has to be the whole one's."""
    built = model(net)
    whole = trace_whole(built, "net", "net", seen)
    repeated = trace_repeated(built, "net", "net", seen, ANY)
    assert len(net.layers) == len(list(net.layers))
    if repeated is None:
        assert graph_id(trace(built, "net", "net", seen)) == graph_id(whole)
        return False
    assert canonical_json(repeated) == canonical_json(whole)
    assert repeated.operators == whole.operators
    return True


def net(count: int, body: Callable[[Any, Any], Any] = as_it_is, **more: Any) -> Any:
    return Net([Layer(number, body) for number in range(count)], **more)


@pytest.mark.parametrize("count", [4, 5, 9, 12])
def test_equal_layers(count: int) -> None:
    assert equal(net(count))


@pytest.mark.parametrize("count", [8, 9, 11, 14])
def test_alternating_layers(count: int) -> None:
    layers = [Layer(i, as_it_is, width=3 + i % 2) for i in range(count)]
    assert find_repeated_layers(Net(layers), ANY) == [RepeatedLayers("layers", count, 0, 2)]
    assert equal(Net(layers))


def test_first_layers_of_another_kind() -> None:
    layers = [Layer(i, as_it_is, width=7 if i < 3 else 5) for i in range(10)]
    assert find_repeated_layers(Net(layers), ANY) == [RepeatedLayers("layers", 10, 3, 1)]
    assert equal(Net(layers))


class Pair(Layer):
    """Takes and returns a second tensor, which its result is multiplied by."""

    def forward(self, x: Any) -> Any:
        x, other = x
        return super().forward(x) * other, other


def test_layers_may_read_what_comes_before_the_list() -> None:
    def run(self: Any, x: Any) -> Any:
        both = x, x.exp()
        for layer in self.layers:
            both = layer(both)
        return both[0]

    assert equal(Net([Pair(i, as_it_is) for i in range(9)], run))


def test_two_lists_of_which_one_reads_the_other() -> None:
    def run(self: Any, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        both = x.exp(), x
        for layer in self.more:
            both = layer(both)
        return both[0] + x

    two = net(6, run=run)
    two.more = nn.ModuleList([Pair(i, as_it_is, 3 + i % 2) for i in range(11)])
    lists = [RepeatedLayers("layers", 6, 0, 1), RepeatedLayers("more", 11, 0, 2)]
    assert find_repeated_layers(two, ANY) == lists
    assert equal(two)


def test_what_follows_may_not_read_a_layer_in_the_middle() -> None:
    def run(self: Any, x: Any) -> Any:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number == 0:
                first = x
        return x + first

    assert not equal(net(9, run=run))


def test_layers_of_another_number_beyond_those_traced() -> None:
    def late(layer: Any, x: Any) -> Any:
        return x.exp() if layer.number >= 6 else x

    assert not equal(net(12, late))


def test_numbers_in_the_computation() -> None:
    assert not equal(net(9, lambda layer, x: x * layer.number))


def test_operators_between_the_layers() -> None:
    def run(self: Any, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).exp()
        return x

    assert not equal(net(9, run=run))


def test_all_layers_read_at_the_end() -> None:
    def run(self: Any, x: Any) -> Any:
        every = []
        for layer in self.layers:
            x = layer(x)
            every.append(x)
        return torch.stack(every).sum(0)

    assert not equal(net(9, run=run))


def test_layers_that_run_in_another_order() -> None:
    def run(self: Any, x: Any) -> Any:
        for layer in list(self.layers)[::-1]:
            x = layer(x)
        return x

    assert not equal(net(9, run=run))


def test_what_cannot_be_shortened_is_traced_whole() -> None:
    def run(self: Any, x: Any) -> Any:
        for number in range(9):
            x = self.layers[number](x)
        return x

    assert not equal(net(9, run=run))


def test_layers_that_differ_are_not_repeated() -> None:
    rates = Net([Layer(i, as_it_is) for i in range(9)])
    for number, layer in enumerate(rates.layers):
        layer.rate = number / 10
    last = Net([Layer(i, as_it_is, width=5 if i == 8 else 4) for i in range(9)])
    shared = net(9)
    shared.layers[7].linear = shared.layers[2].linear
    for other in (rates, last, shared):
        assert find_repeated_layers(other, ANY) == []


def test_a_list_of_the_configuration_tells_layers_apart() -> None:
    told = net(10)
    told.config = types.SimpleNamespace(layer_types=["full", "sliding"] * 5, dtypes=["bf16"] * 9)
    assert find_repeated_layers(told, ANY) == [RepeatedLayers("layers", 10, 0, 2)]


def test_few_layers_are_not_worth_it() -> None:
    assert find_repeated_layers(net(9)) == []
    assert find_repeated_layers(net(10)) == [RepeatedLayers("layers", 10, 0, 1)]


def test_a_shortened_module_is_whole_again() -> None:
    whole = net(10)
    layers = list(whole.layers)
    lists = find_repeated_layers(whole)
    with pytest.raises(ZeroDivisionError), shortened(whole, lists):
        assert [layer.number for layer in whole.layers] == [0, 1, 9]
        raise ZeroDivisionError
    assert list(whole.layers) == layers


def test_stages_are_told() -> None:
    STAGES.clear()
    trace(model(net(12)), "net", "net", seen)
    assert STAGES == ["tracing 3 of 12 layers", "tracing 4 of 12 layers", "repeating layers"]
    STAGES.clear()
    trace(model(net(3)), "net", "net", seen)
    assert STAGES == ["tracing the model"]
