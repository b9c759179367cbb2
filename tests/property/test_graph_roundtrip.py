"""Laws of graph documents: reading what was written changes nothing; order is topological."""

from __future__ import annotations

import json
import random
import string

from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.graph import (
    DTYPE_BYTES,
    Graph,
    Operator,
    Tensor,
    canonical_json,
    graph_document,
    graph_from_document,
    graph_from_json,
    graph_id,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random acyclic graph: every operator reads earlier tensors and makes one or two."""
    shapes = st.lists(st.integers(1, 9), max_size=4).map(tuple)
    dtypes = st.sampled_from(sorted(DTYPE_BYTES))
    tensors: dict[str, Tensor] = {}

    def add(role: str) -> str:
        name = draw(names.filter(lambda n: n not in tensors))
        shape = draw(shapes)
        batch_dim = draw(st.none() | st.integers(0, len(shape) - 1)) if shape else None
        tensors[name] = Tensor(name, shape, draw(dtypes), role, batch_dim)  # type: ignore[arg-type]
        return name

    for role in draw(st.lists(st.sampled_from(["input", "parameter", "buffer"]), max_size=3)):
        add(role)
    operators = []
    for number in range(draw(st.integers(1, 6))):
        inputs = draw(st.lists(st.sampled_from(sorted(tensors)), max_size=3)) if tensors else []
        outputs = [add(draw(st.sampled_from(["activation", "output"])))]
        attributes = draw(st.dictionaries(names.filter(lambda n: n != "tensor_arguments"), values))
        operators.append(
            Operator(
                f"{number}{draw(names)}",
                "my.kind",
                tuple(inputs),
                tuple(outputs),
                attributes,
                draw(st.text(string.printable, max_size=4)),
            )
        )
    return Graph(draw(names), tensors, tuple(operators))


@given(graphs())
def test_reading_what_was_written_changes_nothing(graph: Graph) -> None:
    data = canonical_json(graph)
    again = graph_from_json(data)
    assert again == graph
    assert canonical_json(again) == data
    assert graph_from_document(graph_document(graph)) == graph


@given(graphs(), st.randoms(use_true_random=False))
def test_any_order_of_operators_is_sorted(graph: Graph, dice: random.Random) -> None:
    document = graph_document(graph)
    dice.shuffle(document["operators"])
    ordered = graph_from_document(document).operators
    assert sorted(op.name for op in ordered) == sorted(op.name for op in graph.operators)
    available = {n for n, t in graph.tensors.items() if t.role in ("input", "parameter", "buffer")}
    for op in ordered:
        assert available.issuperset(op.inputs)
        available.update(op.outputs)


@given(graphs(), st.data())
def test_another_content_has_another_id(graph: Graph, data: st.DataObject) -> None:
    document = graph_document(graph)
    place = data.draw(st.integers(0, len(document["operators"]) - 1))
    document["operators"][place]["scope"] += "'"
    assert graph_id(graph_from_document(document)) != graph_id(graph)


@given(graphs(), st.data())
def test_damaged_text_is_refused_or_read_but_never_crashes(
    graph: Graph, data: st.DataObject
) -> None:
    text = canonical_json(graph)
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.binary(max_size=3)) + text[at + 1 :]
    try:
        graph_from_json(damaged, "damaged.json")
    except BadInput as error:
        assert error.file == "damaged.json"


@given(values, st.sampled_from(["name", "tensors", "operators", "schema"]))
def test_any_json_value_in_any_place_is_judged(value: object, place: str) -> None:
    document: dict[str, object] = {
        "schema": "shardwise.graph/1",
        "name": "n",
        "tensors": [],
        "operators": [],
    }
    document[place] = value
    for read in (graph_from_document, lambda d: graph_from_json(json.dumps(d).encode())):
        try:
            read(document)
        except BadInput:
            continue
        raise AssertionError("a graph without operators was accepted")
