"""Shapes that well-known operators must have: right ones pass, each wrong one is named."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.shapes import shape_problem

Shapes = list[tuple[int, ...]]


def problem(kind: str, inputs: Shapes, output: tuple[int, ...], **attributes: Any) -> str | None:
    """The field that is at fault, or None."""
    tensors = {f"i{n}": Tensor(f"i{n}", s, "float32", "input") for n, s in enumerate(inputs)}
    names = tuple(tensors)
    tensors["o"] = Tensor("o", output, "float32", "activation")
    caught = shape_problem(Operator("op", f"aten.{kind}", names, ("o",), attributes), tensors)
    return caught.field if caught else None


RIGHT: list[tuple[str, Shapes, tuple[int, ...], dict[str, Any]]] = [
    ("linear.default", [(2, 5, 4), (3, 4), (3,)], (2, 5, 3), {}),
    ("linear.default", [(4,), (3, 4)], (3,), {}),
    ("mm.default", [(2, 4), (4, 3)], (2, 3), {}),
    ("bmm.default", [(7, 2, 4), (7, 4, 3)], (7, 2, 3), {}),
    ("addmm.default", [(3,), (2, 4), (4, 3)], (2, 3), {}),
    ("baddbmm.default", [(1, 1, 3), (7, 2, 4), (7, 4, 3)], (7, 2, 3), {}),
    ("matmul.default", [(5, 1, 2, 4), (6, 4, 3)], (5, 6, 2, 3), {}),
    ("matmul.default", [(4,), (4,)], (), {}),
    ("matmul.default", [(2, 4), (4,)], (2,), {}),
    ("matmul.default", [(4,), (6, 4, 3)], (6, 3), {}),
    ("conv2d.default", [(2, 3, 9, 8), (6, 3, 3, 3), (6,)], (2, 6, 5, 8), {
        "stride": [2, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}),
    ("conv1d.default", [(2, 4, 9), (4, 1, 4)], (2, 4, 3), {
        "stride": [1], "padding": [0], "dilation": [2], "groups": 4}),
    ("conv2d.padding", [(2, 3, 28, 28), (6, 3, 14, 14)], (2, 6, 2, 2), {
        "stride": [14, 14], "padding": "valid"}),
    ("conv1d.padding", [(2, 3, 9), (6, 3, 4)], (2, 6, 9), {"dilation": [2], "padding": "same"}),
    ("embedding.default", [(10, 3), (2, 7)], (2, 7, 3), {}),
    ("add.Tensor", [(2, 1, 4), (3, 1)], (2, 3, 4), {}),
    ("mul.Tensor", [(2, 4)], (2, 4), {"other": 2}),
    ("where.self", [(4,), (3, 1), ()], (3, 4), {}),
    ("relu.default", [(2, 4)], (2, 4), {}),
    ("layer_norm.default", [(2, 4), (4,), (4,)], (2, 4), {}),
    ("view.default", [(2, 6)], (3, 4), {}),
    ("transpose.int", [(2, 3, 4)], (2, 4, 3), {"dim0": 1, "dim1": -1}),
    ("permute.default", [(2, 3, 4)], (4, 2, 3), {"dims": [2, 0, 1]}),
    ("cat.default", [(2, 3), (2, 5)], (2, 8), {"dim": -1}),
    ("scaled_dot_product_attention.default", [(2, 8, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3)],
     (2, 8, 5, 3), {}),
    ("cross_entropy_loss.default", [(2, 9, 5), (2, 5)], (), {}),
    ("cross_entropy_loss.default", [(2, 9), (2, 9)], (), {}),
    ("frobnicate.default", [(2, 9)], (7,), {}),
]  # fmt: skip

WRONG: list[tuple[str, Shapes, tuple[int, ...], dict[str, Any], str]] = [
    ("linear.default", [(2, 5), (3, 4)], (2, 3), {}, "inputs[0]"),
    ("linear.default", [(2, 4), (3, 4), (4,)], (2, 3), {}, "inputs[2]"),
    ("linear.default", [(2, 4), (3, 4)], (2, 4), {}, "outputs[0]"),
    ("linear.default", [(2, 4)], (2, 4), {}, "inputs"),
    ("linear.default", [(2, 4), (3, 4, 1)], (2, 3), {}, "inputs[1]"),
    ("mm.default", [(2, 4), (5, 3)], (2, 3), {}, "inputs[1]"),
    ("mm.default", [(2, 4, 1), (4, 3)], (2, 3), {}, "inputs[0]"),
    ("bmm.default", [(7, 2, 4), (6, 4, 3)], (7, 2, 3), {}, "inputs[1]"),
    ("bmm.default", [(7, 2, 4), (7, 4, 3)], (7, 3, 2), {}, "outputs[0]"),
    ("addmm.default", [(4,), (2, 4), (4, 3)], (2, 3), {}, "inputs[0]"),
    ("matmul.default", [(5, 2, 4), (6, 4, 3)], (5, 2, 3), {}, "inputs[1]"),
    ("matmul.default", [(2, 4), (3,)], (2,), {}, "inputs[1]"),
    ("matmul.default", [(), (3,)], (3,), {}, "inputs[0]"),
    ("conv2d.default", [(2, 4, 9, 9), (6, 3, 3, 3)], (2, 6, 7, 7), {}, "inputs[1]"),
    ("conv2d.default", [(2, 3, 9, 9), (6, 3, 3, 3)], (2, 6, 9, 9), {}, "outputs[0]"),
    ("conv2d.default", [(2, 3, 9, 9), (6, 3, 3, 3), (5,)], (2, 6, 7, 7), {}, "inputs[2]"),
    ("conv2d.default", [(3, 9, 9), (6, 3, 3, 3)], (6, 7, 7), {}, "inputs[0]"),
    ("conv2d.default", [(2, 3, 9, 9), (6, 3, 3, 3)], (2, 6, 7, 7), {"stride": "x"},
     "attributes.stride"),
    ("conv2d.default", [(2, 3, 9, 9), (6, 3, 3, 3)], (2, 6, 7, 7), {"padding": [1, 1, 1]},
     "attributes.padding"),
    ("conv2d.default", [(2, 3, 9, 9), (6, 3, 3, 3)], (2, 6, 7, 7), {"stride": 0}, "attributes"),
    ("conv2d.padding", [(2, 3, 9, 9), (6, 3, 3, 3)], (2, 6, 5, 5),
     {"padding": "same", "stride": 2}, "attributes.stride"),
    ("conv2d.padding", [(2, 3, 9, 9), (6, 3, 3, 3)], (2, 6, 7, 7), {"padding": "full"},
     "attributes.padding"),
    ("conv2d.default", [(2, 3, 9, 9), (6, 3, 3, 3)], (2, 6, 7, 7), {"groups": 0}, "inputs[1]"),
    ("embedding.default", [(10, 3), (2, 7)], (2, 7, 10), {}, "outputs[0]"),
    ("embedding.default", [(10, 3, 1), (2, 7)], (2, 7, 3), {}, "inputs[0]"),
    ("add.Tensor", [(2, 4), (3, 4)], (3, 4), {}, "inputs[1]"),
    ("add.Tensor", [(2, 4), (1, 4)], (1, 4), {}, "outputs[0]"),
    ("relu.default", [(2, 4)], (2, 5), {}, "outputs[0]"),
    ("relu.default", [], (2, 5), {}, "inputs"),
    ("view.default", [(2, 6)], (3, 5), {}, "outputs[0]"),
    ("transpose.int", [(2, 3)], (2, 3), {"dim0": 0, "dim1": 1}, "outputs[0]"),
    ("transpose.int", [(2, 3)], (3, 2), {"dim0": 0, "dim1": 2}, "attributes.dim1"),
    ("permute.default", [(2, 3)], (3, 2), {"dims": [1, 1]}, "attributes.dims"),
    ("cat.default", [(2, 3), (3, 5)], (2, 8), {"dim": 1}, "inputs[1]"),
    ("cat.default", [(2, 3), (2, 5)], (2, 9), {"dim": 1}, "outputs[0]"),
    ("scaled_dot_product_attention.default", [(2, 5, 4), (2, 6, 3), (2, 6, 4)], (2, 5, 4), {},
     "inputs[1]"),
    ("scaled_dot_product_attention.default", [(2, 5, 4), (2, 6, 4), (2, 5, 4)], (2, 5, 4), {},
     "inputs[2]"),
    ("cross_entropy_loss.default", [(2, 9, 5), (2, 9)], (), {}, "inputs[1]"),
    ("relu.default", [(2, 4)], (2, 4), {"tensor_arguments": ["a", "b"]},
     "attributes.tensor_arguments"),
    ("relu.default", [(2, 4)], (2, 4), {"tensor_arguments": [1]}, "attributes.tensor_arguments"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "inputs", "output", "attributes"), RIGHT)
def test_shapes_that_fit(
    kind: str, inputs: Shapes, output: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    assert problem(kind, inputs, output, **attributes) is None


@pytest.mark.parametrize(("kind", "inputs", "output", "attributes", "field"), WRONG)
def test_shapes_that_do_not_fit(
    kind: str, inputs: Shapes, output: tuple[int, ...], attributes: dict[str, Any], field: str
) -> None:
    assert problem(kind, inputs, output, **attributes) == field


def test_argument_names_decide_which_input_is_which() -> None:
    names = {"tensor_arguments": ["input", "weight"]}
    assert problem("linear.default", [(2, 4), (3, 4)], (2, 3), **names) is None
    names = {"tensor_arguments": ["weight", "input"]}
    assert problem("linear.default", [(3, 4), (2, 4)], (2, 3), **names) is None
    assert problem("linear.default", [(2, 4), (3, 4)], (2, 3), **names) == "outputs[0]"
