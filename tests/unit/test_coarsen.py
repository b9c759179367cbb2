"""Coarsening: what shares a strategy, on a hand-made graph with hand-made semantics."""

from __future__ import annotations

from shardwise.graph import Graph, Operator, Tensor
from shardwise.graph.semantics import Access, IndexVariable, OperatorSemantics
from shardwise.sharding.coarsen import Coarsened, coarsen


def _linear(o: int, i: int) -> OperatorSemantics:
    return OperatorSemantics(
        (IndexVariable("b", 8), IndexVariable("o", o), IndexVariable("i", i, "sum")),
        ({0: Access(0), 2: Access(1)}, {1: Access(0), 2: Access(1)}),
        ({0: Access(0), 1: Access(1)},),
        (True, True),
        (False,),
        2.0 * 8 * o * i,
        4.0 * 8 * o * i,
        "heavy",
    )


def _pointwise(inputs: int, width: int) -> OperatorSemantics:
    access = {0: Access(0), 1: Access(1)}
    return OperatorSemantics(
        (IndexVariable("b", 8), IndexVariable("h", width)),
        (access,) * inputs,
        (access,),
        (False,) * inputs,
        (False,),
        8.0 * width,
        8.0 * width,
        "elementwise",
    )


def _scaled(o: int, i: int) -> OperatorSemantics:
    access = {0: Access(0), 1: Access(1)}
    return OperatorSemantics(
        (IndexVariable("o", o), IndexVariable("i", i)),
        (access,),
        (access,),
        (False,),
        (False,),
        float(o * i),
        float(o * i),
        "elementwise",
    )


def _build(operators: list[tuple[str, str, list[str], str, tuple[int, int]]]) -> Graph:
    tensors = {"x": Tensor("x", (8, 16), "float32", "input", 0)}
    ops = []
    for name, kind, inputs, scope, shape in operators:
        for tensor in inputs:
            if tensor.startswith("w"):
                tensors.setdefault(tensor, Tensor(tensor, (16, 16), "float32", "parameter"))
            if tensor.startswith("c"):
                tensors.setdefault(tensor, Tensor(tensor, (8, 16), "float32", "buffer"))
        tensors[name] = Tensor(name, shape, "float32", "activation")
        ops.append(Operator(name, kind, tuple(inputs), (name,), {}, scope))
    return Graph("hand-made", tensors, tuple(ops))


def _coarsen(graph: Graph) -> Coarsened:
    def analyse(op: Operator) -> OperatorSemantics:
        if op.kind == "linear":
            o, i = graph.tensors[op.outputs[0]].shape[1], graph.tensors[op.inputs[0]].shape[1]
            return _linear(o, i)
        if op.kind == "scale":
            return _scaled(16, 16)
        return _pointwise(len(op.inputs), graph.tensors[op.outputs[0]].shape[1])

    return coarsen(graph, analyse)


def _groups(coarsened: Coarsened) -> list[set[str]]:
    return [{m.operator.name for m in g.members} for g in coarsened.groups]


def test_light_runs_join_and_heavy_operators_stand_alone() -> None:
    graph = _build(
        [
            ("a", "linear", ["x", "w1"], "m.a", (8, 16)),
            ("r", "relu", ["a"], "m", (8, 16)),
            ("t", "tanh", ["r"], "m", (8, 16)),
            ("b", "linear", ["t", "w2"], "m.b", (8, 16)),
        ]
    )
    assert _groups(_coarsen(graph)) == [{"a"}, {"r", "t"}, {"b"}]


def test_a_residual_addition_starts_a_new_group() -> None:
    graph = _build(
        [
            ("n", "relu", ["x"], "m", (8, 16)),
            ("a", "linear", ["n", "w1"], "m.a", (8, 16)),
            ("s", "add", ["n", "a"], "m", (8, 16)),
            ("t", "tanh", ["s"], "m", (8, 16)),
        ]
    )
    assert _groups(_coarsen(graph)) == [{"n"}, {"a"}, {"s", "t"}]


def test_a_gate_joins_its_partner() -> None:
    graph = _build(
        [
            ("g", "linear", ["x", "w1"], "m.g", (8, 16)),
            ("u", "linear", ["x", "w2"], "m.u", (8, 16)),
            ("s", "silu", ["g"], "m", (8, 16)),
            ("p", "mul", ["s", "u"], "m", (8, 16)),
        ]
    )
    assert _groups(_coarsen(graph)) == [{"g", "u"}, {"s", "p"}]


def test_siblings_in_other_modules_stay_apart() -> None:
    graph = _build(
        [
            ("g", "linear", ["x", "w1"], "one.g", (8, 16)),
            ("u", "linear", ["x", "w2"], "two.u", (8, 16)),
        ]
    )
    assert _groups(_coarsen(graph)) == [{"g"}, {"u"}]


def test_a_shared_parameter_joins_time_steps_and_their_cells() -> None:
    graph = _build(
        [
            ("a1", "linear", ["x", "w1"], "m", (8, 16)),
            ("h1", "tanh", ["a1"], "m", (8, 16)),
            ("a2", "linear", ["h1", "w1"], "m", (8, 16)),
            ("h2", "tanh", ["a2"], "m", (8, 16)),
        ]
    )
    coarsened = _coarsen(graph)
    assert _groups(coarsened) == [{"a1", "a2"}, {"h1", "h2"}]
    # No tensor joins the cells, yet they share their variables.
    assert coarsened.groups[1].variables == ("batch", "h")
    assert [m.variables for m in coarsened.groups[1].members] == [(0, 1), (0, 1)]


def test_an_operator_on_parameters_alone_belongs_to_its_reader() -> None:
    graph = _build(
        [
            ("v", "scale", ["w1"], "m", (16, 16)),
            ("r", "relu", ["x"], "m", (8, 16)),
            ("a", "linear", ["r", "v"], "m.a", (8, 16)),
            ("t", "tanh", ["a"], "m", (8, 16)),
        ]
    )
    coarsened = _coarsen(graph)
    assert _groups(coarsened) == [{"r"}, {"v", "a"}, {"t"}]
    group = coarsened.groups[1]
    assert group.name == "a"
    assert [m.on_parameters for m in group.members] == [True, False]
    # The weight's rows and columns are the product's.
    assert [[group.variables[v] for v in m.variables] for m in group.members] == [
        ["o", "i"],
        ["batch", "o", "i"],
    ]


def test_readers_of_one_parameter_join_through_what_was_made_of_it() -> None:
    graph = _build(
        [
            ("v", "scale", ["w1"], "m", (16, 16)),
            ("a", "linear", ["x", "v"], "m.a", (8, 16)),
            ("t", "tanh", ["a"], "m", (8, 16)),
            ("u", "scale", ["w1"], "m", (16, 16)),
            ("b", "linear", ["t", "u"], "m.b", (8, 16)),
        ]
    )
    assert _groups(_coarsen(graph)) == [{"v", "a", "u", "b"}, {"t"}]


def test_constants_are_in_no_group() -> None:
    graph = _build(
        [
            ("k", "tanh", ["c1"], "m", (8, 16)),
            ("s", "add", ["x", "k"], "m", (8, 16)),
            ("a", "linear", ["s", "w1"], "m", (8, 16)),
        ]
    )
    coarsened = _coarsen(graph)
    assert [op.name for op in coarsened.constants] == ["k"]
    assert _groups(coarsened) == [{"s"}, {"a"}]


def test_variables_are_tied_through_tensors_and_named_in_output_order() -> None:
    graph = _build(
        [
            ("g", "linear", ["x", "w1"], "m.g", (8, 16)),
            ("u", "linear", ["x", "w2"], "m.u", (8, 16)),
            ("s", "silu", ["g"], "m", (8, 16)),
            ("p", "mul", ["s", "u"], "m", (8, 16)),
        ]
    )
    coarsened = _coarsen(graph)
    assert [g.variables for g in coarsened.groups] == [
        ("batch", "o", "i"),
        ("batch", "h"),
    ]
    assert all(m.variables == (0, 1, 2) for m in coarsened.groups[0].members)
