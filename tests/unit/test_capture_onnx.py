"""ONNX files made node by node: what is folded, fused, translated, and refused."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from shardwise.capture import capture  # noqa: E402
from shardwise.capture.onnx.rules import table  # noqa: E402
from shardwise.errors import BadInput, CaptureError, CaptureWarning  # noqa: E402
from shardwise.graph import Graph, read_graph  # noqa: E402
from shardwise.tdl.registry import described_kinds  # noqa: E402

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        yield


def tensor(name: str, *shape: int | str, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int) -> Any:
    generator = np.random.default_rng(len(name))
    return numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)


def number(name: str, value: float) -> Any:
    return numpy_helper.from_array(np.float32(value), name)


def ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.asarray(values, dtype=np.int64), name)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    declared: Sequence[Any] = (),
    opset: int = 20,
    **more: Any,
) -> Any:
    graph = helper.make_graph(
        list(nodes), "g", list(inputs), list(outputs), list(weights), value_info=list(declared)
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=imports, **more)


def saved(folder: Path, made: Any) -> str:
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return str(path)


def captured(folder: Path, made: Any, **sizes: Any) -> Graph:
    return capture(saved(folder, made), **sizes)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.operators]


def linear(batch: int | str = 4) -> Any:
    return model(
        [node("MatMul", "x w", "p"), node("Add", "p b", "y")],
        [tensor("x", batch, 8)],
        [tensor("y", batch, 16)],
        [weight("w", 8, 16), weight("b", 16)],
    )


# What becomes of nodes


def test_a_product_with_a_weight_and_a_bias_is_a_linear_layer(tmp_path: Path) -> None:
    graph = captured(tmp_path, linear())
    assert kinds(graph) == ["aten.linear.default"]
    assert graph.operators[0].inputs == ("x", "w", "b")
    assert graph.tensors["w"].shape == (16, 8)
    assert graph.tensors["w"].role == graph.tensors["b"].role == "parameter"
    assert graph.parameter_count == 8 * 16 + 16
    assert graph.batch_size == 4


def test_a_transposed_weight_that_is_tied_stays_one(tmp_path: Path) -> None:
    made = model(
        [
            node("Gather", "table ids", "e"),
            node("Transpose", "table", "t", perm=[1, 0]),
            node("MatMul", "e t", "y"),
        ],
        [tensor("ids", 2, 5, kind=INT)],
        [tensor("y", 2, 5, 32)],
        [weight("table", 32, 8)],
    )
    graph = captured(tmp_path, made)
    assert kinds(graph) == ["aten.embedding.default", "aten.linear.default"]
    assert graph.parameter_count == 32 * 8
    assert graph.operators[1].inputs[1] == "table"


def test_a_product_of_activations_is_no_linear_layer(tmp_path: Path) -> None:
    made = model(
        [node("MatMul", "x z", "y")], [tensor("x", 4, 8), tensor("z", 8, 2)], [tensor("y", 4, 2)]
    )
    assert kinds(captured(tmp_path, made)) == ["aten.matmul.default"]


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
    made = model(
        nodes,
        [tensor("x", "batch", 6, 4)],
        [tensor("y", "batch", 24)],
        [numpy_helper.from_array(np.int64(0), "zero"), ints("axis", 0), ints("rest", -1)],
    )
    graph = captured(tmp_path, made, batch=3)
    assert kinds(graph) == ["aten.view.default", "aten.relu.default"]
    assert graph.tensors[graph.operators[-1].outputs[0]].shape == (3, 24)
    assert [t.role for t in graph.tensors.values()] == ["input", "activation", "output"]


def test_a_known_condition_chooses_its_branch(tmp_path: Path) -> None:
    def branch(kind: str) -> Any:
        return helper.make_graph([node(kind, "x", "o")], kind, [], [tensor("o", 4)])

    condition = numpy_helper.from_array(np.asarray(True), "c")
    made = model(
        [node("If", "c", "y", then_branch=branch("Relu"), else_branch=branch("Tanh"))],
        [tensor("x", 4)],
        [tensor("y", 4)],
        [condition],
    )
    assert kinds(captured(tmp_path, made)) == ["aten.relu.default"]


def test_an_unknown_condition_is_an_undescribed_operator(tmp_path: Path) -> None:
    def branch(kind: str) -> Any:
        return helper.make_graph([node(kind, "x", "o")], kind, [], [tensor("o", 4)])

    made = model(
        [node("If", "c", "y", then_branch=branch("Relu"), else_branch=branch("Tanh"))],
        [tensor("c", kind=TensorProto.BOOL), tensor("x", 4)],
        [tensor("y", 4)],
    )
    graph = captured(tmp_path, made)
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
    made = model(nodes, [tensor("x", 4, 8)], [tensor("y", 4, 8)], constants)
    assert kinds(captured(tmp_path, made)) == [kind]


def test_what_is_read_twice_is_not_fused(tmp_path: Path) -> None:
    made = model(
        [node("Sigmoid", "x", "s"), node("Mul", "x s", "m"), node("Add", "m s", "y")],
        [tensor("x", 4)],
        [tensor("y", 4)],
    )
    assert kinds(captured(tmp_path, made)) == [
        "aten.sigmoid.default",
        "aten.mul.Tensor",
        "aten.add.Tensor",
    ]


def attention(scales: int) -> Any:
    """Scores scaled in both factors (as exporters write the operator) or in one."""
    nodes = [
        node("Mul", "q s", "qs"),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        *([node("Mul", "kt s", "kts")] if scales == 2 else []),
        node("MatMul", "qs kts" if scales == 2 else "qs kt", "p"),
        node("Add", "p m", "pm"),
        node("Softmax", "pm", "w", axis=-1),
        node("MatMul", "w v", "y"),
    ]
    heads = [tensor(n, 2, 4, 6, 8) for n in "qkv"]
    mask = tensor("m", 2, 1, 6, 6)
    return model(nodes, [*heads, mask], [tensor("y", 2, 4, 6, 8)], [number("s", 0.5)])


def test_attention_comes_back(tmp_path: Path) -> None:
    graph = captured(tmp_path, attention(2))
    assert kinds(graph) == ["aten.scaled_dot_product_attention.default"]
    assert graph.operators[0].inputs == ("q", "k", "v", "m")


def test_attention_that_a_model_spells_out_stays(tmp_path: Path) -> None:
    found = kinds(captured(tmp_path, attention(1)))
    assert "aten.softmax.int" in found
    assert "aten.scaled_dot_product_attention.default" not in found


def test_attention_of_onnx_itself(tmp_path: Path) -> None:
    made = model(
        [node("Attention", "q k v", "y", q_num_heads=4, kv_num_heads=2, is_causal=1)],
        [tensor("q", 2, 6, 32), tensor("k", 2, 6, 16), tensor("v", 2, 6, 16)],
        [tensor("y", 2, 6, 32)],
        opset=23,
    )
    graph = captured(tmp_path, made)
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
    made = model(
        [node("BatchNormalization", "x w b m v", "y")],
        [tensor("x", 2, 3, 4, 4)],
        [tensor("y", 2, 3, 4, 4)],
        [weight(n, 3) for n in "wbmv"],
    )
    graph = captured(tmp_path, made)
    assert graph.operators[0].attributes["training"] is True
    assert {n: graph.tensors[n].role for n in "wbmv"} == {
        "w": "parameter",
        "b": "parameter",
        "m": "buffer",
        "v": "buffer",
    }


def test_uneven_padding_is_an_operator_of_its_own(tmp_path: Path) -> None:
    made = model(
        [node("Conv", "x w", "y", auto_pad="SAME_UPPER", strides=[2, 2])],
        [tensor("x", 2, 3, 8, 8)],
        [tensor("y", 2, 5, 4, 4)],
        [weight("w", 5, 3, 3, 3)],
    )
    graph = captured(tmp_path, made)
    assert kinds(graph) == ["aten.pad.default", "aten.conv2d.default"]
    assert graph.operators[0].attributes["pad"] == [0, 1, 0, 1]


def test_numbers_are_attributes(tmp_path: Path) -> None:
    made = model(
        [node("Sub", "one x", "a"), node("Div", "two a", "b"), node("Pow", "b two", "y")],
        [tensor("x", 4)],
        [tensor("y", 4)],
        [number("one", 1.0), number("two", 2.0)],
    )
    graph = captured(tmp_path, made)
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
    made = model(nodes, [tensor("x", 2, 4, 4)], [tensor("y", 2)], [weight("w", 4)], declared)
    graph = captured(tmp_path, made)
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


# Sizes


def test_open_dimensions_are_bound(tmp_path: Path) -> None:
    made = model(
        [node("Relu", "x", "y")], [tensor("x", "n", "length", 8)], [tensor("y", "n", "length", 8)]
    )
    path = saved(tmp_path, made)
    assert capture(path, batch=2, seq=7).tensors["x"].shape == (2, 7, 8)
    assert capture(f"{path}:n=3,length=5").tensors["x"].shape == (3, 5, 8)
    with pytest.raises(CaptureError, match=r"x: dimension 1 \(length\) is left open.*--seq"):
        capture(path, batch=2)
    with pytest.raises(CaptureError, match="no open dimension is called 'm'"):
        capture(f"{path}:m=3", batch=2, seq=2)
    with pytest.raises(CaptureError, match="is no size"):
        capture(f"{path}:n=many")


def test_fixed_dimensions_cannot_be_changed(tmp_path: Path) -> None:
    path = saved(tmp_path, linear())
    assert capture(path, batch=4).batch_size == 4
    with pytest.raises(CaptureError, match=r"batch: the file has fixed sizes \[4, 8\]"):
        capture(path, batch=8)
    with pytest.raises(CaptureError, match="dtype"):
        capture(path, dtype="bf16")


# What a file may lack


def test_a_file_without_a_loss_is_taken_and_said(tmp_path: Path) -> None:
    with pytest.warns(CaptureWarning, match="no loss: backward is taken to start from its outputs"):
        captured(tmp_path, linear())


def test_parameters_that_the_exporter_lost_are_named(tmp_path: Path) -> None:
    made = linear()
    entry = made.graph.metadata_props.add()
    entry.key = "pkg.torch.export.ExportedProgram.graph_signature"
    entry.value = "\n".join(
        f"p: PARAMETER target='{n}'" for n in ("w", "b", "norm.weight", "norm.bias")
    )
    with pytest.warns(CaptureWarning, match=r"lacks: norm\.weight, norm\.bias"):
        captured(tmp_path, made)


def test_the_exporter_says_what_is_a_buffer(tmp_path: Path) -> None:
    made = model(
        [node("Mul", "x w", "y")], [tensor("x", 4, 8)], [tensor("y", 4, 8)], [weight("w", 8)]
    )
    assert captured(tmp_path, made).tensors["w"].role == "parameter"
    entry = made.graph.metadata_props.add()
    entry.key = "pkg.torch.export.ExportedProgram.graph_signature"
    entry.value = "b_w: BUFFER target='w' persistent=True"
    assert captured(tmp_path, made).tensors["w"].role == "buffer"


def external(made: Any, name: str) -> Any:
    """The same file with one initialiser in a file that does not exist."""
    found = next(t for t in made.graph.initializer if t.name == name)
    found.ClearField("raw_data")
    found.data_location = TensorProto.EXTERNAL
    entry = found.external_data.add()
    entry.key, entry.value = "location", "../not-there.bin"
    return made


def test_weights_in_other_files_are_not_opened(tmp_path: Path) -> None:
    graph = captured(tmp_path, external(linear(), "w"))
    assert graph.parameter_count == 8 * 16 + 16


def test_a_shape_that_lies_in_another_file_is_an_error(tmp_path: Path) -> None:
    made = model(
        [node("Reshape", "x target", "v"), node("Relu", "v", "y")],
        [tensor("x", 4, 8)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [ints("target", 8, 4)],
    )
    with pytest.raises(CaptureError, match=r"graph\.value_info v: .*'target'.*external data"):
        captured(tmp_path, external(made, "target"))


# Files that are none


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            model([node("Relu", "z", "y")], [tensor("x", 4)], [tensor("y", 4)]),
            r"graph\.node\[0\]\.input\[0\].*'z', which nothing before it makes",
        ),
        (
            model(
                [node("Relu", "b", "a"), node("Relu", "a", "b")], [tensor("x", 4)], [tensor("b", 4)]
            ),
            r"graph\.node\[0\]\.input\[0\].*'b'",
        ),
        (
            model(
                [node("Relu", "x", "y"), node("Tanh", "x", "y")], [tensor("x", 4)], [tensor("y", 4)]
            ),
            r"graph\.node\[1\]\.output\[0\]: 'y' is made twice",
        ),
        (
            model([node("Relooo", "x", "y")], [tensor("x", 4)], [tensor("y", 4)]),
            r"graph\.node\[0\]\.op_type: operator set 20 of ONNX has no Relooo",
        ),
        (
            model(
                [
                    helper.make_node("Magic", ["x"], ["m"], domain="com.example"),
                    node("Relu", "m", "y"),
                ],
                [tensor("x", 4)],
                [tensor("y", 4)],
            ),
            r"node\[0\]\.output: .*'m' are not known.*com\.example\.Magic",
        ),
        (
            model([node("Relu", "x", "y")], [tensor("x", 4)], [tensor("q", 4)]),
            r"graph\.output\[0\].*'q'",
        ),
        (
            model([node("Relu", "x", "y")], [tensor("x", 0)], [tensor("y", 0)]),
            "dimension of 0",
        ),
        (
            model(
                [node("Identity", "x", "y")],
                [tensor("x", 4, kind=TensorProto.STRING)],
                [tensor("y", 4, kind=TensorProto.STRING)],
            ),
            r"graph\.input\[0\] x: data type 8",
        ),
    ],
)
def test_faults_are_named_by_field(tmp_path: Path, made: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words) as caught:
        captured(tmp_path, made)
    assert caught.value.file == str(tmp_path / "m.onnx")


def test_a_name_that_is_used_twice_is_refused(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "x")], [tensor("x", 4)], [tensor("x", 4)])
    with pytest.raises(CaptureError, match="'x' is made twice"):
        captured(tmp_path, made)


@pytest.mark.parametrize(
    "content", [b"", b"not an ONNX file, but text", b"\x00" * 100, b"PK\x03\x04"]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=str(path)):
        capture(str(path))


def test_missing_files_folders_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureError, match="no such file"):
        capture(str(tmp_path / "absent.onnx"))
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(CaptureError, match="is a directory"):
        capture(str(tmp_path / "folder.onnx"))
    path = saved(tmp_path, linear())
    monkeypatch.setenv("SHARDWISE_MAX_FILE_BYTES", "100")
    with pytest.raises(CaptureError, match=r"at most 100 bytes.*SHARDWISE_MAX_FILE_BYTES"):
        capture(path)


def recurrent() -> Any:
    """One layer, batches first, as PyTorch's exporter writes it."""
    return model(
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("LSTM", "t w r b", "h", hidden_size=4),
            node("Transpose", "h", "m", perm=[0, 2, 1, 3]),
            node("Reshape", "m size", "f"),
            node("Transpose", "f", "y", perm=[1, 0, 2]),
        ],
        [tensor("x", 2, 5, 3)],
        [tensor("y", 2, 5, 4)],
        [weight("w", 1, 16, 3), weight("r", 1, 16, 4), weight("b", 1, 32), ints("size", 5, 2, 4)],
    )


def test_a_recurrent_layer_is_pytorchs(tmp_path: Path) -> None:
    graph = captured(tmp_path, recurrent())
    assert kinds(graph) == ["aten.zeros.default", "aten.zeros.default", "aten.lstm.input"]
    op = graph.operators[-1]
    assert op.attributes["batch_first"] is True
    assert [graph.tensors[n].shape for n in op.inputs[3:]] == [(16, 3), (16, 4), (16,), (16,)]
    assert graph.parameter_count == 16 * 3 + 16 * 4 + 32


WHOLE = linear().SerializeToString()
BREAKABLE = {
    "linear": WHOLE,
    "attention": attention(2).SerializeToString(),
    "recurrent": recurrent().SerializeToString(),
}


@pytest.mark.parametrize("made", [linear(), attention(2)], ids=["linear", "attention"])
def test_files_that_are_cut_off(tmp_path: Path, made: Any) -> None:
    whole = made.SerializeToString()
    wanted = captured(tmp_path, made)
    path = tmp_path / "m.onnx"
    refused = 0
    for end in range(1, len(whole), max(len(whole) // 80, 1)):
        path.write_bytes(whole[:end])
        try:
            # What is cut at its end may be whole in all that matters.
            assert capture(str(path)) == wanted
        except CaptureError:
            refused += 1
    assert refused > 75


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(("linear", "attention", "recurrent")), st.data())
def test_a_changed_byte_is_no_crash(name: str, data: st.DataObject) -> None:
    import tempfile

    broken = bytearray(BREAKABLE[name])
    broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.write(broken)
        file.flush()
        try:
            capture(file.name)
        except BadInput as error:
            assert error.file == file.name


def doubling(levels: int) -> Any:
    """Functions that each call the next one twice."""
    functions = []
    for level in range(levels):
        called = f"f{level + 1}" if level < levels - 1 else "Relu"
        domain = "com.example" if level < levels - 1 else ""
        body = [
            helper.make_node(called, ["a"], ["b"], domain=domain),
            helper.make_node(called, ["b"], ["c"], domain=domain),
        ]
        imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
        functions.append(
            helper.make_function("com.example", f"f{level}", ["a"], ["c"], body, imports)
        )
    call = helper.make_node("f0", ["x"], ["y"], domain="com.example")
    return model([call], [tensor("x", 4)], [tensor("y", 4)], functions=functions)


def test_functions_are_written_out(tmp_path: Path) -> None:
    assert kinds(captured(tmp_path, doubling(3))) == ["aten.relu.default"] * 8


def test_functions_that_multiply_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="more than 1,000,000 nodes"):
        captured(tmp_path, doubling(40))


def test_huge_constants_are_not_made(tmp_path: Path) -> None:
    made = model(
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
    assert "aten.full.default" in kinds(captured(tmp_path, made))


# Around it


def test_without_onnx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CaptureError, match=r"shardwise\[onnx\]"):
        capture("m.onnx")


def test_capture_of_onnx_needs_no_torch(tmp_path: Path) -> None:
    path = saved(tmp_path, linear())
    code = (
        "import sys, warnings\nsys.modules['torch'] = None\nwarnings.simplefilter('ignore')\n"
        "from shardwise.capture import capture\n"
        f"assert capture({path!r}).parameter_count == 144\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardwise.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    path, out = saved(tmp_path, linear()), str(tmp_path / "g.json")
    done = run("capture", path, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "note: the file has no loss" in done.stderr
    assert read_graph(out).parameter_count == 144
    Path(path).write_bytes(WHOLE[: len(WHOLE) // 2])
    failed = run("capture", path, "-o", out)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert path in failed.stderr
