"""Descriptions against PyTorch's own sample inputs.

torch tests its operators on samples with many shapes and attributes (`op_db`); every call of a
described ATen operator that they lead to is verified as the examples are. Whole numbers and truth
values stay as they are in the samples, all other inputs are drawn again.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
# torch's database of samples needs it.
pytest.importorskip("expecttest")
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.tdl_unverified import UNVERIFIED
from shardwise.capture.attributes import TensorValue, bind
from shardwise.errors import ShardwiseError
from shardwise.tdl import Example, Mismatch, NotCovered, verify
from shardwise.tdl.registry import description

# Our own examples of every description are verified by test_tdl_against_torch.py in `make test`.
pytestmark = [pytest.mark.full, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SAMPLES, CALLS = 5, 3
"""How many samples of an operator, and how many calls of one kind from them."""

MOST_ELEMENTS = 3000

SINGLE_ROWS = frozenset(
    {
        "aten._embedding_bag_forward_only.default",
        "aten.nll_loss_forward.default",
        "aten.nll_loss2d_forward.default",
    }
)
"""Their samples pick rows that share 0 does not have, where `claims` wants them."""


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(
        self, target: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls.append((target, args, kwargs or {}))
        return target(*args, **(kwargs or {}))


def _recorded(info: Any) -> Iterator[tuple[Any, Any, Any]]:
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
    # Not `info.sample_inputs`, which records the stack for each.
    samples = info.sample_inputs_func(info, "cpu", dtype, False) if dtype in info.dtypes else ()
    counts: dict[str, int] = {}
    for number, sample in enumerate(samples):
        if number == SAMPLES:
            return
        with torch.no_grad(), _Recorder() as recorder:
            info.op(sample.input, *sample.args, **sample.kwargs)
        for call in recorder.calls:
            counts[str(call[0])] = counts.get(str(call[0]), 0) + 1
            if counts[str(call[0])] <= CALLS:
                yield call


def _example(target: Any, args: Any, kwargs: Any) -> Example | None:
    """The call as an example, with new random numbers for floats; None for what is too large."""
    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            name = f"t{len(tensors)}"
            tensors[name] = value
            return TensorValue(name)
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    bound = bind(target, tuple(map(plain, args)), {k: plain(v) for k, v in kwargs.items()})
    named = {role: tensors[name] for role, name in zip(bound.roles, bound.tensors, strict=True)}
    if any(t.numel() > MOST_ELEMENTS or t.numel() == 0 for t in named.values()):
        return None
    real = [t for t in named.values() if t.is_floating_point()]
    return Example(
        {role: tuple(t.shape) for role, t in named.items()},
        bound.attributes,
        positive=bool(real) and all(bool((t > 0).all()) for t in real),
        complexes=frozenset(role for role, t in named.items() if t.is_complex()),
        given={
            role: t.numpy()
            for role, t in named.items()
            if not t.is_floating_point() and not t.is_complex()
        },
        tolerance=1e-6,
    )


def test_descriptions_hold_on_the_samples_of_torch() -> None:
    module = "torch.testing._internal.common_methods_invocations"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seen: set[str] = set()
    wrong: list[str] = []
    verified = 0
    for info in importlib.import_module(module).op_db:
        try:
            calls = list(_recorded(info))
        except (RuntimeError, TypeError, ValueError, ImportError, AssertionError):
            continue  # samples that this machine cannot run
        for target, args, kwargs in calls:
            kind = str(target)
            described = description(kind)
            if (
                described is None
                or described.replicated
                or kind in SINGLE_ROWS
                or kind in UNVERIFIED
            ):
                continue
            try:
                example = _example(target, args, kwargs)
                signature = f"{kind} {example}"
                if example is None or signature in seen:
                    continue
                seen.add(signature)
                verify(kind, example, parts=(2, 3, 5))
                verified += 1
            except Mismatch as error:
                wrong.append(f"{error} {dict(example.shapes)} {example.attributes}")
            except (NotCovered, ShardwiseError, RuntimeError, TypeError):
                continue  # not covered, or random numbers that the operator refuses
    torch.set_num_threads(threads)
    assert not wrong, "\n".join(wrong)
    assert verified > 1500
