"""Real training steps on CPU tensors with every allocation of a tensor tracked.

`AllocationTracker` says what is seen; `allocated_peak` sees what kernels take for themselves too.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from shardwise.capture.capture import build
from shardwise.capture.huggingface import training_form
from shardwise.capture.source import parse_source
from shardwise.execute.allocation import AllocationTracker
from shardwise.execute.master_weights import optimizer_of


@dataclass(frozen=True)
class Tracked:
    """Bytes: `parameters` alone, all that is there `before` the step, and the `peak` in it."""

    parameters: int
    before: int
    peak: int
    tracker: AllocationTracker


def materialise(module: Any) -> None:
    """Give a module on the meta device real, random weights; tied ones stay tied."""
    replaced: dict[int, Any] = {}

    def real(tensor: Any) -> Any:
        if id(tensor) not in replaced:
            data = torch.zeros(tensor.shape, dtype=tensor.dtype)
            if isinstance(tensor, torch.nn.Parameter):
                data.normal_(0.0, 0.02)
                replaced[id(tensor)] = torch.nn.Parameter(data, requires_grad=tensor.requires_grad)
            else:
                replaced[id(tensor)] = data
        return replaced[id(tensor)]

    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = real(tensor)


def _optimizer(parameters: list[Any], kind: str, update: str) -> Any:
    if any(parameter.element_size() < 4 for parameter in parameters):
        return optimizer_of(parameters, kind)
    how = {"foreach": update == "foreach", "fused": update == "fused"}
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=1e-4, **how)
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9 if kind == "momentum" else 0.0, **how)


def _checkpoint(module: Any, blocks: str) -> None:
    layers = [m for name, m in module.named_modules() if re.search(rf"{blocks}\.\d+$", name)]
    assert layers, f"no modules {blocks}.0 …"
    for block in layers:
        forward = block.forward
        block.forward = functools.partial(checkpoint, forward, use_reentrant=False)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Prepared:
    """A model with its optimizer and micro-batches of inputs; `step` trains it once."""

    parameters: list[Any]
    others: list[Any]
    optimizer: Any
    step: Callable[[], None]

    @property
    def state(self) -> list[Any]:
        """The optimizer's tensors, without step counts."""
        return [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.dim()
        ]


def prepare(
    source: str,
    *,
    batch: int,
    seq: int | None = None,
    dtype: str = "float32",
    optimizer: str = "adam",
    update: str = "for-loop",
    micro_batches: int = 1,
    blocks: str | None = None,
) -> Prepared:
    """A model that has been trained for one step, which brings optimizer state into being.

    `batch` is that of the whole step. The items of the list of modules called `blocks` are run
    again in backward (torch.utils.checkpoint).
    """
    parsed = parse_source(source)
    model = build(parsed, batch // micro_batches, seq, dtype)
    module = model.module
    materialise(module)
    if blocks is not None:
        _checkpoint(module, blocks)
    pieces = [
        ([_random(t) for t in model.args], {k: _random(t) for k, t in model.kwargs.items()})
        for _ in range(micro_batches)
    ]
    parameters = list(module.parameters())
    chosen = _optimizer(parameters, optimizer, update)

    def step() -> None:
        for positional, named in pieces:
            with training_form() if parsed.kind == "hf" else contextlib.nullcontext():
                module(*positional, **named).backward()
        chosen.step()
        chosen.zero_grad()

    with _one_thread():
        step()
    return Prepared(parameters, [*module.buffers(), *tree_leaves(pieces)], chosen, step)


def track_step(source: str, **choices: Any) -> Tracked:
    """Track the second step of what `prepare` makes of the arguments."""
    prepared = prepare(source, **choices)
    gc.collect()
    tracker = AllocationTracker()
    tracker.follow(prepared.parameters, "parameter")
    alone = tracker.now_bytes
    tracker.follow(prepared.state, "state")
    tracker.follow(prepared.others, "buffer or input")
    before = tracker.now_bytes
    with _one_thread(), tracker:
        prepared.step()
    return Tracked(alone, before, tracker.peak_bytes, tracker)


def allocated_peak(step: Callable[[], None]) -> int:
    """The most that torch's CPU allocator gave out during a step and had not got back, in bytes."""
    with _one_thread(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = profiled.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = highest = 0
    for _, change in changes:
        now += change
        highest = max(highest, now)
    return highest


def _random(tensor: Any) -> Any:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)
