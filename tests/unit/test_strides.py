"""Strides followed through views agree with torch's."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.graph import Graph, Operator, Tensor
from shardwise.sharding.strides import contiguous, stride_class, stride_classes, strides_of


@pytest.mark.parametrize(
    ("shape", "strides", "text"),
    [
        ((4, 6), (6, 1), ""),
        ((4, 6), (1, 4), "1,0"),
        ((2, 3, 4, 5), (60, 5, 15, 1), "0,2,1,3"),
        ((4, 6), (18, 1), "0x3,1"),
        ((4, 6), (12, 2), "0,1x2"),
        ((4, 6), (0, 1), "1|0"),
        ((1, 6), (99, 1), ""),
        ((2, 12, 8, 64), (8 * 2304, 64, 2304, 1), "0,2x3,1,3"),
    ],
)
def test_a_class_gives_the_strides_back(
    shape: tuple[int, ...], strides: tuple[int, ...], text: str
) -> None:
    assert stride_class(shape, strides) == text
    rebuilt = strides_of(shape, text)
    assert [s for n, s in zip(shape, rebuilt, strict=True) if n > 1] == [
        s for n, s in zip(shape, strides, strict=True) if n > 1
    ]


def test_a_shard_lies_as_its_tensor() -> None:
    """Half of the heads of a transposed tensor are a transposed tensor of half the heads."""
    assert strides_of((2, 6, 8, 64), "0,2x3,1,3") == (8 * 3 * 384, 64, 3 * 384, 1)
    assert strides_of((0, 3), "") == contiguous((0, 3))


CHAINS: list[list[tuple[str, dict[str, Any]]]] = [
    [("transpose.int", {"dim0": 1, "dim1": 2}), ("reshape.default", {"shape": [2, -1, 4]})],
    [("permute.default", {"dims": [2, 0, -2]}), ("select.int", {"dim": 1, "index": 0})],
    [("slice.Tensor", {"dim": 2, "start": 0, "end": 2, "step": 1}), ("mT.default", {})],
    [("unsqueeze.default", {"dim": 0}), ("expand.default", {"size": [3, 2, 6, 4]})],
    [("slice.Tensor", {"dim": 1, "start": 0, "end": 6, "step": 2}), ("relu.default", {})],
    [("view.default", {"size": [2, 3, 2, 4]}), ("transpose.int", {"dim0": 1, "dim1": 3})],
    [("transpose.int", {"dim0": 0, "dim1": 2}), ("relu.default", {}), ("t.default", {})][:2],
    [("transpose.int", {"dim0": 0, "dim1": 1}), ("flatten.using_ints", {"start_dim": 0})],
]


@pytest.mark.torch
@pytest.mark.parametrize("chain", CHAINS, ids=lambda c: "-".join(kind for kind, _ in c))
def test_views_lie_as_in_torch(chain: list[tuple[str, dict[str, Any]]]) -> None:
    import torch

    from shardwise.torch_operators import call, overload

    real = torch.empty(2, 6, 4)
    tensors = {"x": Tensor("x", (2, 6, 4), "float32", "input")}
    operators = []
    name = "x"
    for step, (kind, attributes) in enumerate(chain):
        (real,) = call(overload(f"aten.{kind}"), {"self": real}, attributes)
        out = f"t{step}"
        tensors[out] = Tensor(out, tuple(real.shape), "float32", "activation")
        given = {**attributes, "tensor_arguments": ["self"]}
        operators.append(Operator(f"o{step}", f"aten.{kind}", (name,), (out,), given))
        name = out
    relu = frozenset(op.name for op in operators if "relu" in op.kind)
    classes = stride_classes(Graph("chain", tensors, tuple(operators)), relu)
    assert classes[name] == stride_class(tuple(real.shape), tuple(real.stride()))
