"""Backward in two parts: each operator's I and W together are autograd's own gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from harness.execute.local_ranks import whole_calls
from shardwise.execute.exchange import Exchange
from shardwise.execute.local import local_operator
from shardwise.execute.local.share import argument_names
from shardwise.execute.local.waiting import Deferral, run_waiting
from shardwise.execute.rank_mesh import RankMesh
from shardwise.graph.graph import Tensor
from shardwise.graph.split_backward import ARGUMENTS
from shardwise.torch_operators import overload

pytestmark = pytest.mark.torch

KINDS = sorted(ARGUMENTS)


def calls(kind: str) -> Iterator[tuple[Any, dict[str, Tensor], Any, list[torch.Tensor]]]:
    """Yields calls of a kind in double precision, with weights and biases as parameters."""
    for op, tensors, semantics, _, arrays in whole_calls(kind):
        if op.kind != kind:
            continue
        names = argument_names(op, overload(kind))
        weights = {n for n, a in zip(op.inputs, names, strict=True) if a in ARGUMENTS[kind][1:]}
        roles = {n: replace(tensors[n], role="parameter") for n in weights}
        torch_arrays = [torch.as_tensor(array) for array in arrays]
        given = [t.double() if t.is_floating_point() else t for t in torch_arrays]
        yield op, {**tensors, **roles}, semantics, given


def backward(
    op: Any, tensors: dict[str, Tensor], semantics: Any, given: list[torch.Tensor], split: bool
) -> tuple[Any, list[Any], list[Any]]:
    """Returns what an operator makes, and its gradients after I and at the end."""
    mesh = RankMesh(["x"], [1], 0)
    deferral = Deferral() if split else None
    exchange = Exchange(mesh, torch.device("cpu"))
    local = local_operator(op, tensors, semantics, (None,), mesh, exchange, deferral)
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in given]
    (result,) = local(*leaves)
    torch.manual_seed(0)
    result.backward(torch.randn_like(result))
    first = [leaf.grad for leaf in leaves]
    if deferral is not None:
        assert local.deferred
        assert all(first[port] is None for port in local.deferred)
        assert len(deferral.waiting) == 1
        run_waiting(deferral.waiting)
    return result.detach(), first, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_first_and_weights_later_are_all_gradients(kind: str) -> None:
    tried = 0
    for op, tensors, semantics, given in calls(kind):
        names = argument_names(op, overload(kind))
        if any(op.attributes.get(name, 1) != 1 for name in ("alpha", "beta")):
            continue
        data = given[names.index(ARGUMENTS[kind][0])]
        if kind == "aten.matmul.default" and (data.dim() < 2 or given[1].dim() != 2):
            continue
        if ARGUMENTS[kind][1] not in names:
            continue
        tried += 1
        wanted, _, right = backward(op, tensors, semantics, given, split=False)
        made, _, parts = backward(op, tensors, semantics, given, split=True)
        torch.testing.assert_close(made, wanted, rtol=1e-11, atol=1e-11)
        for part, whole in zip(parts, right, strict=True):
            if whole is None:
                assert part is None
            else:
                torch.testing.assert_close(part, whole, rtol=1e-11, atol=1e-11)
    assert tried


def test_products_of_activations_are_not_split() -> None:
    for op, tensors, semantics, given in calls("aten.mm.default"):
        both = {name: replace(tensors[name], role="activation") for name in op.inputs}
        mesh, deferral = RankMesh(["x"], [1], 0), Deferral()
        exchange = Exchange(mesh, torch.device("cpu"))
        local = local_operator(
            op, {**tensors, **both}, semantics, (None,), mesh, exchange, deferral
        )
        leaves = [t.clone().requires_grad_() for t in given]
        local(*leaves)[0].sum().backward()
        assert not local.deferred and not deferral.waiting
        assert all(leaf.grad is not None for leaf in leaves)
