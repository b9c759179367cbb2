"""One step of method `tofu` against enumeration, with every element counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.graph_builder import ADD, MUL, GraphBuilder
from harness.tofu_elements import Elements
from shardwise.answers import Options
from shardwise.graph import Graph, Tensor
from shardwise.hardware import load_hardware
from shardwise.search.search import Subject, search
from shardwise.search.tofu import TofuSolution


class Builder(GraphBuilder):
    """A graph of [batch, features] tensors whose names are numbers."""

    def __init__(self, batch: int, width: int) -> None:
        super().__init__("drawn")
        self.input("x", batch, width)

    def weight(self, *shape: int) -> str:
        return self.parameter(f"w{len(self.tensors)}", *shape)

    def next(self) -> tuple[str, str]:
        """The names of the next operator and of its output."""
        return f"op{len(self.operators)}", f"t{len(self.tensors)}"

    def product(self, source: str, width: int) -> str:
        weight = self.weight(width, self.shape(source)[1])
        name, out = self.next()
        return self.linear(name, source, weight, out, out)

    def scale(self, source: str) -> str:
        factor = self.weight(self.shape(source)[1])
        name, out = self.next()
        return self.both(name, MUL, source, factor, out, out)

    def positive(self, source: str) -> str:
        name, out = self.next()
        return self.relu(name, source, out, out)

    def residual(self, a: str, b: str) -> str:
        name, out = self.next()
        return self.both(name, ADD, a, b, out, out)


@st.composite
def drawn(draw: st.DrawFn, k: int) -> Graph:
    size = st.sampled_from([k, 2 * k, 6 * k])
    built = Builder(draw(size), draw(size))
    names = [built.scale("x")]
    for _ in range(draw(st.integers(1, 4))):
        source = draw(st.sampled_from(names))
        alike = [n for n in names if built.tensors[n].shape == built.tensors[source].shape]
        match draw(st.sampled_from(["linear", "linear", "relu", "residual"])):
            case "linear":
                names.append(built.product(source, draw(size)))
            case "relu":
                names.append(built.positive(source))
            case _:
                names.append(built.residual(source, draw(st.sampled_from(alike))))
    return built.graph()


def tofu_of(graph: Graph, gpus: int) -> tuple[Subject, TofuSolution]:
    subject = Subject.of(graph)
    result = search(subject, load_hardware("dgx-h100"), gpus, Options(overlap=False, method="tofu"))
    assert isinstance(result.solution, TofuSolution)
    return subject, result.solution


@pytest.mark.parametrize("k", [2, 3])
def test_the_first_step_is_the_least_of_all_strategies(k: int) -> None:
    reduced = []

    @given(drawn(k))
    def check(graph: Graph) -> None:
        subject, solution = tofu_of(graph, k)
        (step,) = solution.steps
        elements = Elements(subject, k)
        assert step.exact
        assert step.total_bytes == pytest.approx(elements.least_bytes())
        assert step.total_bytes == pytest.approx(elements.plan_bytes(step.variables))
        reduced.append(any(v == 2 for v in step.variables))

    check()
    # The generator reaches output reduction ("in" is the third variable of a product).
    assert any(reduced)
    assert not all(reduced)


def convolutions(height: int, channels: int) -> Graph:
    """Two convolutions with halo, the first one's output read by a skip connection too."""
    shape = (2, channels, height, 4)
    builder = GraphBuilder("convolutions")
    builder.input("x", *shape)
    builder.parameter("s", 1)
    builder.both("scale", MUL, "x", "s", "a")
    builder.parameter("w1", channels, channels, 3, 3)
    arguments = {"input": "a", "weight": "w1"}
    builder.operator(
        "conv", "aten.conv2d.default", arguments, "b", shape, padding=[1, 1], stride=[1, 1]
    )
    builder.both("add", ADD, "a", "b", "c")
    return builder.graph()


@pytest.mark.parametrize(("height", "channels"), [(4, 2), (64, 2), (4, 16), (32, 8)])
def test_halos_are_counted_row_by_row(height: int, channels: int) -> None:
    subject, solution = tofu_of(convolutions(height, channels), 2)
    elements = Elements(subject, 2)
    (step,) = solution.steps
    assert step.total_bytes == pytest.approx(elements.least_bytes())


def test_a_halo_is_cheaper_than_weights_where_a_batch_cannot_be_split() -> None:
    """One tall image, wide channels: Tofu's Figure 1 along x, parallel convolution."""
    graph = convolutions(64, 16)
    graph.tensors.update(
        {
            n: Tensor(n, (1, *t.shape[1:]), t.dtype, t.role, t.batch_dim)
            for n, t in graph.tensors.items()
            if len(t.shape) == 4 and n != "w1"
        }
    )
    subject, solution = tofu_of(graph, 2)
    (step,) = solution.steps
    split = [g.variables[v] for g, v in zip(subject.coarsened.groups, step.variables, strict=True)]
    assert split[1] == "y"
    assert step.total_bytes == pytest.approx(Elements(subject, 2).least_bytes())
