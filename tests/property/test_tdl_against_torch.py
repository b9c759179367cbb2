"""Descriptions against the real operators: run whole, run in two shares, compare (Tofu §9).

For every variable without halo or statistic the inputs are cut as the description says, the
real operator runs on each share, and the shares are put together or summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardwise.graph import Operator, Tensor
from shardwise.tdl import analyse

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Case = tuple[str, list[tuple[int, ...]], list[str], Callable[..., Any], dict[str, Any]]

F = torch.nn.functional
CASES: list[Case] = [
    ("aten.linear.default", [(4, 6, 8), (10, 8)], ["input", "weight"], F.linear, {}),
    ("aten.mm.default", [(4, 6), (6, 8)], ["self", "mat2"], torch.mm, {}),
    ("aten.bmm.default", [(2, 4, 6), (2, 6, 8)], ["self", "mat2"], torch.bmm, {}),
    ("aten.matmul.default", [(2, 4, 6, 8), (8, 10)], ["self", "other"], torch.matmul, {}),
    ("aten.matmul.default", [(2, 4, 6, 8), (4, 8, 2)], ["self", "other"], torch.matmul, {}),
    ("aten.conv1d.default", [(4, 6, 16), (8, 6, 1)], ["input", "weight"], F.conv1d, {}),
    ("aten.conv2d.default", [(4, 6, 8, 8), (8, 6, 3, 3)], ["input", "weight"], F.conv2d, {}),
    (
        "aten.layer_norm.default",
        [(4, 6, 8)],
        ["input"],
        lambda x: F.layer_norm(x, [8]),
        {"normalized_shape": [8]},
    ),
    ("aten.softmax.int", [(4, 6, 8)], ["self"], lambda x: x.softmax(-1), {"dim": -1}),
    ("aten.relu.default", [(4, 6)], ["self"], torch.relu, {}),
    ("aten.gelu.default", [(4, 6)], ["self"], F.gelu, {}),
    ("aten.add.Tensor", [(4, 6, 8), (6, 1)], ["self", "other"], torch.add, {}),
    ("aten.mul.Tensor", [(4, 6, 8), (8,)], ["self", "other"], torch.mul, {}),
    (
        "aten.transpose.int",
        [(4, 6, 8)],
        ["self"],
        lambda x: x.transpose(1, 2),
        {"dim0": 1, "dim1": 2},
    ),
    (
        "aten.permute.default",
        [(4, 6, 8)],
        ["self"],
        lambda x: x.permute(2, 0, 1),
        {"dims": [2, 0, 1]},
    ),
    ("aten.unsqueeze.default", [(4, 6)], ["self"], lambda x: x.unsqueeze(1), {"dim": 1}),
    ("aten.sum.dim_IntList", [(4, 6, 8)], ["self"], lambda x: x.sum(1), {"dim": [1]}),
    ("aten.amax.default", [(4, 6, 8)], ["self"], lambda x: x.amax(2), {"dim": [2]}),
    ("aten.cumsum.default", [(4, 6)], ["self"], lambda x: x.cumsum(1), {"dim": 1}),
    (
        "aten.max_pool2d.default",
        [(4, 6, 8, 8)],
        ["self"],
        lambda x: F.max_pool2d(x, 2),
        {"kernel_size": [2, 2]},
    ),
    (
        "aten.avg_pool2d.default",
        [(4, 6, 8, 8)],
        ["self"],
        lambda x: F.avg_pool2d(x, 4),
        {"kernel_size": [4, 4]},
    ),
    (
        "aten.scaled_dot_product_attention.default",
        [(2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)],
        ["query", "key", "value"],
        F.scaled_dot_product_attention,
        {"is_causal": False},
    ),
    (
        "aten.cat.default",
        [(4, 6), (4, 2)],
        ["tensors.0", "tensors.1"],
        lambda a, b: torch.cat([a, b], 1),
        {"dim": 1},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_shares_make_the_whole(case: Case) -> None:
    kind, shapes, arguments, run, attributes = case
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    whole = run(*inputs)
    names = [f"t{i}" for i in range(len(shapes))]
    tensors = {n: Tensor(n, s, "float64", "activation") for n, s in zip(names, shapes, strict=True)}
    tensors["y"] = Tensor("y", tuple(whole.shape), "float64", "activation")
    operator = Operator(
        "op", kind, tuple(names), ("y",), {"tensor_arguments": arguments, **attributes}
    )
    sem = analyse(operator, tensors)
    assert sem.described
    assert sem.variables
    checked = 0
    for v, variable in enumerate(sem.variables):
        accesses = [by_variable.get(v) for by_variable in sem.inputs]
        halo = any(a is not None and (a.halo_before or a.halo_after) for a in accesses)
        in_statistic = any(v in s.reduced for s in sem.statistics)
        grains = {a.granularity for a in accesses if a is not None and a.granularity}
        if halo or in_statistic or variable.extent % 2 or any(g % 2 for g in grains):
            continue
        shares = []
        for half in range(2):
            cut = [
                t if a is None else t.chunk(2, dim=a.dim)[half]
                for t, a in zip(inputs, accesses, strict=True)
            ]
            shares.append(run(*cut))
        place = sem.outputs[0].get(v)
        if place is not None:
            joined = torch.cat(shares, dim=place.dim)
        else:
            assert variable.is_reduction
            reduce = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
            joined = reduce[variable.reducer](*shares)
        torch.testing.assert_close(joined, whole)
        checked += 1
    assert checked > 0
