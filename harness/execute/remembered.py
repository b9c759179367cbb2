"""Captures that are made once in each process, for tests that make the same module for each case.

A capture takes a second on each rank, most of what a test of a small module does. It has names,
shapes and operators of a module, no values; so it holds for another of the same class and shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import shardwise
from shardwise.capture.model import Model, first_names
from shardwise.execute import captured
from shardwise.execute.captured import Captured

_capture = captured.capture_module
_KNOWN: dict[Any, tuple[Any, Any]] = {}


def capture_module(model: Model, name: str) -> Captured:
    """Is `captured.capture_module`, and exports modules that are alike once."""
    key = (_form(model), name)
    if key not in _KNOWN:
        made = _capture(model, name)
        _KNOWN[key] = made.converted, made.returns
    return Captured(model, *_KNOWN[key])


def remember(model: Model, name: str, parts: int) -> None:
    """Captures a module, whole and on 1 / `parts` of the batch, for processes forked from here."""
    with _remembering():
        captured.smaller(capture_module(model, name), parts)


def parallelize(module: Any, inputs: Any, plan: Any, **options: Any) -> Any:
    """Is `shardwise.parallelize`, and exports modules that are alike once."""
    with _remembering():
        return shardwise.parallelize(module, inputs, plan, **options)


@contextlib.contextmanager
def _remembering() -> Iterator[None]:
    captured.capture_module = capture_module
    try:
        yield
    finally:
        captured.capture_module = _capture


def _form(model: Model) -> Any:
    """Returns what a capture may depend on."""
    module = model.module
    known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    leaves, structure = pytree.tree_flatten((model.args, dict(model.kwargs)))
    return (
        (type(module).__module__, type(module).__qualname__, repr(module), module.training),
        tuple(first_names(module).items()),
        tuple((name, _of(tensor), tensor.requires_grad) for name, tensor in known.items()),
        str(structure),
        tuple(map(_of, leaves)),
        (model.prefix, model.input_names),
    )


def _of(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf
