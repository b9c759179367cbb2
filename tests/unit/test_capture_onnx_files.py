"""ONNX files that lack something, are broken, or are none: refused by field, never a crash."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from harness.commands import shardwise
from harness.models.onnx_files import (
    FLOAT,
    attention,
    captured,
    doubling,
    ints,
    linear,
    model,
    node,
    recurrent,
    saved,
    tensor,
)
from shardwise.capture import capture
from shardwise.errors import BadInput, CaptureError, CaptureWarning
from shardwise.graph import read_graph

pytestmark = pytest.mark.filterwarnings("ignore::shardwise.errors.CaptureWarning")


# Sizes


def test_open_dimensions_are_bound(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", "x", "y")], [tensor("x", "n", "length", 8)], [tensor("y", "n", "length", 8)]
    )
    path = saved(tmp_path, proto)
    assert capture(path, batch=2, seq=7).tensors["x"].shape == (2, 7, 8)
    assert capture(f"{path}:n=3,length=5").tensors["x"].shape == (3, 5, 8)
    with pytest.raises(CaptureError, match=r"x: dimension 1 \(length\) is left open.*--seq"):
        capture(path, batch=2)
    with pytest.raises(CaptureError, match="no open dimension is called 'm'"):
        capture(f"{path}:m=3", batch=2, seq=2)
    with pytest.raises(CaptureError, match="is not a size"):
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
    proto = linear()
    entry = proto.graph.metadata_props.add()
    entry.key = "pkg.torch.export.ExportedProgram.graph_signature"
    entry.value = "\n".join(
        f"p: PARAMETER target='{n}'" for n in ("w", "b", "norm.weight", "norm.bias")
    )
    with pytest.warns(CaptureWarning, match=r"lacks: norm\.weight, norm\.bias"):
        captured(tmp_path, proto)


def external(proto: Any, name: str) -> Any:
    """The same file with one initialiser in a file that does not exist."""
    initializer = next(t for t in proto.graph.initializer if t.name == name)
    initializer.ClearField("raw_data")
    initializer.data_location = TensorProto.EXTERNAL
    entry = initializer.external_data.add()
    entry.key, entry.value = "location", "../not-there.bin"
    return proto


def test_weights_in_other_files_are_not_opened(tmp_path: Path) -> None:
    graph = captured(tmp_path, external(linear(), "w"))
    assert graph.parameter_count == 8 * 16 + 16


def test_a_shape_that_lies_in_another_file_is_an_error(tmp_path: Path) -> None:
    proto = model(
        [node("Reshape", "x target", "v"), node("Relu", "v", "y")],
        [tensor("x", 4, 8)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [ints("target", 8, 4)],
    )
    with pytest.raises(CaptureError, match=r"graph\.value_info v: .*'target'.*external data"):
        captured(tmp_path, external(proto, "target"))


# Files that are none


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (
            model([node("Relu", "z", "y")], [tensor("x", 4)], [tensor("y", 4)]),
            r"graph\.node\[0\]\.input\[0\].*'z', which no earlier node makes",
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
def test_faults_are_named_by_field(tmp_path: Path, proto: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words) as caught:
        captured(tmp_path, proto)
    assert caught.value.file == str(tmp_path / "m.onnx")


def test_a_name_that_is_used_twice_is_refused(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "x")], [tensor("x", 4)], [tensor("x", 4)])
    with pytest.raises(CaptureError, match="'x' is made twice"):
        captured(tmp_path, proto)


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


WHOLE = linear().SerializeToString()


BREAKABLE = {
    "linear": WHOLE,
    "attention": attention(2).SerializeToString(),
    "recurrent": recurrent().SerializeToString(),
}


@pytest.mark.parametrize("proto", [linear(), attention(2)], ids=["linear", "attention"])
def test_files_that_are_cut_off(tmp_path: Path, proto: Any) -> None:
    whole = proto.SerializeToString()
    wanted = captured(tmp_path, proto)
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


@given(st.sampled_from(("linear", "attention", "recurrent")), st.data())
def test_a_changed_byte_never_crashes(name: str, data: st.DataObject) -> None:
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


def test_functions_that_multiply_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="more than 1,000,000 nodes"):
        captured(tmp_path, doubling(40))


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


def test_the_command(tmp_path: Path) -> None:
    path, out = saved(tmp_path, linear()), str(tmp_path / "g.json")
    done = shardwise("capture", path, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "note: the file has no loss" in done.stderr
    assert read_graph(out).parameter_count == 144
    Path(path).write_bytes(WHOLE[: len(WHOLE) // 2])
    failed = shardwise("capture", path, "-o", out)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert path in failed.stderr
