"""One step of method `tofu` against enumeration, with every element counted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tofu_elements import Elements

from shardwise.advise import Options
from shardwise.advise.search import Subject, search
from shardwise.advise.tofu import TofuSolution
from shardwise.graph import Graph, Operator, Tensor
from shardwise.hardware import load_hardware


class Builder:
    """A graph of [batch, features] tensors, operator by operator."""

    def __init__(self, batch: int, width: int) -> None:
        self.tensors = {"x": Tensor("x", (batch, width), "float32", "input", 0)}
        self.operators: list[Operator] = []
        self.last = "x"

    def parameter(self, *shape: int) -> str:
        name = f"w{len(self.tensors)}"
        self.tensors[name] = Tensor(name, shape, "float32", "parameter")
        return name

    def add(self, kind: str, inputs: list[str], names: list[str], shape: tuple[int, ...]) -> str:
        out = f"t{len(self.tensors)}"
        self.tensors[out] = Tensor(out, shape, "float32", "activation")
        attributes = {"tensor_arguments": names}
        self.operators.append(
            Operator(f"op{len(self.operators)}", kind, tuple(inputs), (out,), attributes, out)
        )
        self.last = out
        return out

    def linear(self, source: str, width: int) -> str:
        batch, features = self.tensors[source].shape
        weight = self.parameter(width, features)
        names = ["input", "weight"]
        return self.add("aten.linear.default", [source, weight], names, (batch, width))

    def scale(self, source: str) -> str:
        batch, features = self.tensors[source].shape
        inputs = [source, self.parameter(features)]
        return self.add("aten.mul.Tensor", inputs, ["self", "other"], (batch, features))

    def relu(self, source: str) -> str:
        return self.add("aten.relu.default", [source], ["self"], self.tensors[source].shape)

    def residual(self, a: str, b: str) -> str:
        shape = self.tensors[a].shape
        return self.add("aten.add.Tensor", [a, b], ["self", "other"], shape)

    def graph(self) -> Graph:
        self.tensors[self.last] = Tensor(
            self.last, self.tensors[self.last].shape, "float32", "output"
        )
        return Graph("drawn", self.tensors, tuple(self.operators))


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
                names.append(built.linear(source, draw(size)))
            case "relu":
                names.append(built.relu(source))
            case _:
                names.append(built.residual(source, draw(st.sampled_from(alike))))
    return built.graph()


def tofu_of(graph: Graph, gpus: int) -> tuple[Subject, TofuSolution]:
    subject = Subject.of(graph)
    found = search(subject, load_hardware("dgx-h100"), gpus, Options(method="tofu"))
    assert isinstance(found.solution, TofuSolution)
    return subject, found.solution


@pytest.mark.parametrize("k", [2, 3])
def test_the_first_step_is_the_least_of_all_strategies(k: int) -> None:
    reduced = []

    @given(drawn(k))
    @settings(max_examples=60, deadline=None)
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
    tensors = {
        "x": Tensor("x", shape, "float32", "input", 0),
        "s": Tensor("s", (1,), "float32", "parameter"),
        "a": Tensor("a", shape, "float32", "activation"),
        "w1": Tensor("w1", (channels, channels, 3, 3), "float32", "parameter"),
        "b": Tensor("b", shape, "float32", "activation"),
        "c": Tensor("c", shape, "float32", "output"),
    }
    arguments = {"tensor_arguments": ["input", "weight"], "padding": [1, 1], "stride": [1, 1]}
    two = {"tensor_arguments": ["self", "other"]}
    operators = (
        Operator("scale", "aten.mul.Tensor", ("x", "s"), ("a",), two, "scale"),
        Operator("conv", "aten.conv2d.default", ("a", "w1"), ("b",), arguments, "conv"),
        Operator("add", "aten.add.Tensor", ("a", "b"), ("c",), two, "add"),
    )
    return Graph("convolutions", tensors, operators)


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
