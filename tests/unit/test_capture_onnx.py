"""What becomes of an ONNX file's nodes: folded, fused, translated, or named as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

from harness.models.onnx_files import (
    FLOAT,
    INT,
    attention,
    captured,
    doubling,
    ints,
    kinds,
    linear,
    model,
    node,
    number,
    recurrent,
    tensor,
    weight,
)
from shardwise.capture.onnx.rules import table
from shardwise.tdl.registry import described_kinds

pytestmark = pytest.mark.filterwarnings("ignore::shardwise.errors.CaptureWarning")


def test_a_product_with_a_weight_and_a_bias_is_a_linear_layer(tmp_path: Path) -> None:
    graph = captured(tmp_path, linear())
    assert kinds(graph) == ["aten.linear.default"]
    assert graph.operators[0].inputs == ("x", "w", "b")
    assert graph.tensors["w"].shape == (16, 8)
    assert graph.tensors["w"].role == graph.tensors["b"].role == "parameter"
    assert graph.parameter_count == 8 * 16 + 16
    assert graph.batch_size == 4


def test_a_transposed_weight_that_is_tied_stays_one(tmp_path: Path) -> None:
    proto = model(
        [
            node("Gather", "table ids", "e"),
            node("Transpose", "table", "t", perm=[1, 0]),
            node("MatMul", "e t", "y"),
        ],
        [tensor("ids", 2, 5, kind=INT)],
        [tensor("y", 2, 5, 32)],
        [weight("table", 32, 8)],
    )
    graph = captured(tmp_path, proto)
    assert kinds(graph) == ["aten.embedding.default", "aten.linear.default"]
    assert graph.parameter_count == 32 * 8
    assert graph.operators[1].inputs[1] == "table"


def test_a_product_of_activations_is_not_a_linear_layer(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x z", "y")], [tensor("x", 4, 8), tensor("z", 8, 2)], [tensor("y", 4, 2)]
    )
    assert kinds(captured(tmp_path, proto)) == ["aten.matmul.default"]


def test_shape_arithmetic_leaves_nothing_behind(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "batch", axis=0),
        node("Unsqueeze", "batch axis", "b1"),
        node("Concat", "b1 rest", "target", axis=0),
        node("Reshape", "x target", "v"),
        node("Identity", "v", "i"),
        node("Cast", "i", "c", to=FLOAT),
        node("Relu", "c", "y"),
    ]
    proto = model(
        nodes,
        [tensor("x", "batch", 6, 4)],
        [tensor("y", "batch", 24)],
        [numpy_helper.from_array(np.int64(0), "zero"), ints("axis", 0), ints("rest", -1)],
    )
    graph = captured(tmp_path, proto, batch=3)
    assert kinds(graph) == ["aten.view.default", "aten.relu.default"]
    assert graph.tensors[graph.operators[-1].outputs[0]].shape == (3, 24)
    assert [t.role for t in graph.tensors.values()] == ["input", "activation", "output"]


def relu_or_tanh() -> Any:
    def branch(kind: str) -> Any:
        return helper.make_graph([node(kind, "x", "o")], kind, [], [tensor("o", 4)])

    return node("If", "c", "y", then_branch=branch("Relu"), else_branch=branch("Tanh"))


def test_a_known_condition_chooses_its_branch(tmp_path: Path) -> None:
    condition = numpy_helper.from_array(np.asarray(True), "c")
    proto = model(
        [relu_or_tanh()],
        [tensor("x", 4)],
        [tensor("y", 4)],
        [condition],
    )
    assert kinds(captured(tmp_path, proto)) == ["aten.relu.default"]


def test_an_unknown_condition_is_an_undescribed_operator(tmp_path: Path) -> None:
    proto = model(
        [relu_or_tanh()],
        [tensor("c", kind=TensorProto.BOOL), tensor("x", 4)],
        [tensor("y", 4)],
    )
    graph = captured(tmp_path, proto)
    assert kinds(graph) == ["onnx.If"]
    assert graph.operators[0].inputs == ("c", "x")


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        ([node("Sigmoid", "x", "s"), node("Mul", "x s", "y")], "aten.silu.default"),
        ([node("Sqrt", "x", "s"), node("Reciprocal", "s", "y")], "aten.rsqrt.default"),
        ([node("Sqrt", "x", "s"), node("Div", "one s", "y")], "aten.rsqrt.default"),
        (
            [
                node("Div", "x root", "d"),
                node("Erf", "d", "e"),
                node("Add", "e one", "a"),
                node("Mul", "x a", "m"),
                node("Mul", "m half", "y"),
            ],
            "aten.gelu.default",
        ),
        (
            [
                node("Mul", "x half", "h"),
                node("Div", "x root", "d"),
                node("Erf", "d", "e"),
                node("Add", "e one", "a"),
                node("Mul", "h a", "y"),
            ],
            "aten.gelu.default",
        ),
    ],
)
def test_activations_come_back(tmp_path: Path, nodes: list[Any], kind: str) -> None:
    constants = [number("one", 1.0), number("half", 0.5), number("root", 2**0.5)]
    proto = model(nodes, [tensor("x", 4, 8)], [tensor("y", 4, 8)], constants)
    assert kinds(captured(tmp_path, proto)) == [kind]


def test_what_is_read_twice_is_not_fused(tmp_path: Path) -> None:
    proto = model(
        [node("Sigmoid", "x", "s"), node("Mul", "x s", "m"), node("Add", "m s", "y")],
        [tensor("x", 4)],
        [tensor("y", 4)],
    )
    assert kinds(captured(tmp_path, proto)) == [
        "aten.sigmoid.default",
        "aten.mul.Tensor",
        "aten.add.Tensor",
    ]


def test_a_reader_that_no_output_needs_keeps_nothing_apart(tmp_path: Path) -> None:
    proto = model(
        [node("Sigmoid", "x", "s"), node("Relu", "s", "unread"), node("Mul", "x s", "y")],
        [tensor("x", 4)],
        [tensor("y", 4)],
    )
    assert kinds(captured(tmp_path, proto)) == ["aten.silu.default"]


def test_attention_comes_back(tmp_path: Path) -> None:
    graph = captured(tmp_path, attention(2))
    assert kinds(graph) == ["aten.scaled_dot_product_attention.default"]
    assert graph.operators[0].inputs == ("q", "k", "v", "m")


def test_attention_that_a_model_spells_out_stays(tmp_path: Path) -> None:
    names = kinds(captured(tmp_path, attention(1)))
    assert "aten.softmax.int" in names
    assert "aten.scaled_dot_product_attention.default" not in names


def test_attention_of_onnx_itself(tmp_path: Path) -> None:
    proto = model(
        [node("Attention", "q k v", "y", q_num_heads=4, kv_num_heads=2, is_causal=1)],
        [tensor("q", 2, 6, 32), tensor("k", 2, 6, 16), tensor("v", 2, 6, 16)],
        [tensor("y", 2, 6, 32)],
        opset=23,
    )
    graph = captured(tmp_path, proto)
    (op,) = [op for op in graph.operators if "scaled" in op.kind]
    assert [graph.tensors[name].shape for name in op.inputs] == [
        (2, 4, 6, 8),
        (2, 2, 6, 8),
        (2, 2, 6, 8),
    ]
    assert op.attributes["is_causal"] is True
    assert op.attributes["enable_gqa"] is True
    assert graph.tensors[graph.operators[-1].outputs[0]].shape == (2, 6, 32)


def test_batch_normalisation_takes_the_statistics_of_the_batch(tmp_path: Path) -> None:
    proto = model(
        [node("BatchNormalization", "x w b m v", "y")],
        [tensor("x", 2, 3, 4, 4)],
        [tensor("y", 2, 3, 4, 4)],
        [weight(n, 3) for n in "wbmv"],
    )
    graph = captured(tmp_path, proto)
    assert graph.operators[0].attributes["training"] is True
    assert {n: graph.tensors[n].role for n in "wbmv"} == {
        "w": "parameter",
        "b": "parameter",
        "m": "buffer",
        "v": "buffer",
    }


def test_uneven_padding_is_an_operator_of_its_own(tmp_path: Path) -> None:
    proto = model(
        [node("Conv", "x w", "y", auto_pad="SAME_UPPER", strides=[2, 2])],
        [tensor("x", 2, 3, 8, 8)],
        [tensor("y", 2, 5, 4, 4)],
        [weight("w", 5, 3, 3, 3)],
    )
    graph = captured(tmp_path, proto)
    assert kinds(graph) == ["aten.pad.default", "aten.conv2d.default"]
    assert graph.operators[0].attributes["pad"] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("form", "filters", "sides"), [("Conv", (5, 3), 6), ("ConvTranspose", (3, 5), 10)]
)
def test_a_bias_is_read_unless_it_is_made_of_zeros(
    tmp_path: Path, form: str, filters: tuple[int, int], sides: int
) -> None:
    for bias, read in (("b", ("x", "w", "b")), ("zeros", ("x", "w"))):
        proto = model(
            [node("ConstantOfShape", "size", "zeros"), node(form, f"x w {bias}", "y")],
            [tensor("x", 2, 3, 8, 8)],
            [tensor("y", 2, 5, sides, sides)],
            [weight("w", *filters, 3, 3), weight("b", 5), ints("size", 5)],
        )
        (op,) = captured(tmp_path, proto).operators
        assert op.inputs == read


def test_numbers_are_attributes(tmp_path: Path) -> None:
    proto = model(
        [node("Sub", "one x", "a"), node("Div", "two a", "b"), node("Pow", "b two", "y")],
        [tensor("x", 4)],
        [tensor("y", 4)],
        [number("one", 1.0), number("two", 2.0)],
    )
    graph = captured(tmp_path, proto)
    assert kinds(graph) == [
        "aten.rsub.Scalar",
        "aten.reciprocal.default",
        "aten.mul.Tensor",
        "aten.pow.Tensor_Scalar",
    ]
    assert not [t for t in graph.tensors.values() if t.role == "buffer"]


def test_an_operator_that_is_not_translated_is_named(tmp_path: Path) -> None:
    magic = helper.make_node("Magic", ["x", "w"], ["m"], domain="com.example", strength=3)
    nodes = [magic, node("Det", "m", "y")]
    declared = [tensor("m", 2, 4, 4)]
    proto = model(nodes, [tensor("x", 2, 4, 4)], [tensor("y", 2)], [weight("w", 4)], declared)
    graph = captured(tmp_path, proto)
    assert kinds(graph) == ["onnx.com.example.Magic", "onnx.Det"]
    assert graph.operators[0].attributes["strength"] == 3


def test_rules_lead_to_described_operators() -> None:
    described = {kind.rpartition(".")[0] for kind in described_kinds()}
    simple = [row for row in table() if row["aten"].count("aten.") == 1 and "/" not in row["aten"]]
    known = [row for row in simple if row["aten"].split()[0].rpartition(".")[0] in described]
    assert len(table()) > 100
    assert len(known) > 0.7 * len(simple)


def test_the_documented_table_is_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text("utf-8")
    for row in table():
        shown = row["aten"].replace("aten.", "").replace(".default", "")
        assert f"| {row['onnx']} | {shown} |" in page


def test_a_recurrent_layer_is_pytorchs(tmp_path: Path) -> None:
    graph = captured(tmp_path, recurrent())
    assert kinds(graph) == ["aten.zeros.default", "aten.zeros.default", "aten.lstm.input"]
    op = graph.operators[-1]
    assert op.attributes["batch_first"] is True
    assert [graph.tensors[n].shape for n in op.inputs[3:]] == [(16, 3), (16, 4), (16,), (16,)]
    assert graph.parameter_count == 16 * 3 + 16 * 4 + 32


def test_functions_are_written_out(tmp_path: Path) -> None:
    assert kinds(captured(tmp_path, doubling(3))) == ["aten.relu.default"] * 8


def test_huge_constants_are_not_made(tmp_path: Path) -> None:
    proto = model(
        [
            node("ConstantOfShape", "size", "c"),
            node("Mul", "c c", "d"),
            node("ReduceSum", "d", "s", keepdims=0),
            node("Add", "x s", "y"),
        ],
        [tensor("x", 4)],
        [tensor("y", 4)],
        [ints("size", 2**20, 2**20)],
    )
    assert "aten.full.default" in kinds(captured(tmp_path, proto))


def test_the_exporter_says_what_is_a_buffer(tmp_path: Path) -> None:
    proto = model(
        [node("Mul", "x w", "y")], [tensor("x", 4, 8)], [tensor("y", 4, 8)], [weight("w", 8)]
    )
    assert captured(tmp_path, proto).tensors["w"].role == "parameter"
    entry = proto.graph.metadata_props.add()
    entry.key = "pkg.torch.export.ExportedProgram.graph_signature"
    entry.value = "b_w: BUFFER target='w' persistent=True"
    assert captured(tmp_path, proto).tensors["w"].role == "buffer"
