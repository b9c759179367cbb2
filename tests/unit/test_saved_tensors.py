"""Saved tensors that are recomputed: known by storage, once for all, even after being saved."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwise.execute.saved import SavedTensors  # noqa: E402

pytestmark = pytest.mark.torch


def test_views_of_a_registered_tensor_are_recomputed_once_and_not_kept() -> None:
    saved, rebuilt = SavedTensors(), []
    weight = torch.randn(4, 3, requires_grad=True)
    x = torch.randn(3, 4) * 2
    copy = x.clone()

    def recompute() -> Any:
        rebuilt.append(1)
        return copy.clone()

    saved.register(x, recompute)
    with saved.hooks():
        loss = (weight * x.view(4, 3)).sum() + (weight * x.t() * 2).sum()
    saved.clear()
    storage = weakref.ref(x.untyped_storage())
    del x
    gc.collect()
    assert storage() is None
    loss.backward()
    assert rebuilt == [1]
    torch.testing.assert_close(weight.grad, copy.view(4, 3) + copy.t() * 2)


def test_a_recomputed_tensor_is_freed_with_its_last_user() -> None:
    saved, rebuilt = SavedTensors(), []
    weight = torch.randn(4, requires_grad=True)
    x = torch.randn(4)
    copy = x.clone()

    def recompute() -> Any:
        tensor = copy.clone()
        rebuilt.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    saved.register(x, recompute)
    with saved.hooks():
        loss = (weight * x).sum()
    saved.clear()
    del x
    loss.backward(retain_graph=True)
    gc.collect()
    assert rebuilt[0]() is not None
    loss.backward()
    gc.collect()
    assert rebuilt[0]() is None, "the loss is still there"
    assert len(rebuilt) == 1
    torch.testing.assert_close(weight.grad, copy * 2)


def test_a_tensor_may_be_registered_after_it_was_saved() -> None:
    saved, rebuilt = SavedTensors(), []
    saved.late = True
    x = torch.randn(5, requires_grad=True)
    with saved.hooks():
        y = x.exp()
        copy = y.detach().clone()
        saved.register(y, lambda: rebuilt.append(1) or copy)  # type: ignore[func-returns-value]
        loss = y.sum()
    saved.clear()
    del y
    loss.backward()
    assert rebuilt == [1]
    torch.testing.assert_close(x.grad, copy)


def test_a_part_of_a_larger_storage_is_kept_as_it_is() -> None:
    saved = SavedTensors()
    whole = torch.randn(6)
    saved.register(whole[:3], lambda: pytest.fail("recomputed"))
    assert saved.keep(whole) is whole
