"""What the host takes: for a pass of an operator, a launch, a copy, a synchronise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

from shardwise.measure.host import REPEATS, passes_of, repeats_s
from shardwise.measure.real_module import SizedSource

from .model import trained
from .parts import Row, Work
from .setting import Setting
from .timing import Timer

LAUNCHES = 500
COPIED_BYTES = 2**28


def measure(setting: Setting, work: Work) -> None:
    """Tells the costs of launches and copies, then the host's floor of each stack of layers."""
    import torch

    timer = Timer(torch, setting.on_gpu)
    work.tell("launch", _launches(torch, timer, setting))
    for name, size, call in _copies(torch, setting):
        work.tell("copy", {"what": name, "bytes": size, "rate_per_s": size / timer.typical(call)})
    for model in setting.stacks:
        if work.left_s > 0:
            work.tell("doing", f"measuring the host floor of {model.name}")
            work.tell("floor", _floor(model, setting, timer))
        else:
            work.tell("left out", f"host floor of {model.name}: no time left")


def _floor(model: SizedSource, setting: Setting, timer: Timer) -> Row:
    """Returns the host's seconds for a pass, counted as in `cost/host.py`: forward and backward of
    layers so small that the device waits for their launch."""
    graph = model.captured(setting.dtype)
    passes = passes_of(graph)
    ready = trained(model, graph, setting)
    ready.step()
    gradients_s, update_s = (
        median(repeats_s(call, timer.wait)) for call in (ready.gradients, ready.optimizer.step)
    )
    parameters, operator_s = len(list(ready.module.parameters())), gradients_s / passes
    known = setting.hardware.host
    return {
        "stack": model.name,
        "passes": passes,
        "operator_s": operator_s,
        "profile_s": known and known.operator_s,
        "error": known and known.operator_s / operator_s - 1.0,
        "parameters": parameters,
        "update_of_a_parameter_s": update_s / parameters,
    }


def _launches(torch: Any, timer: Timer, setting: Setting) -> Row:
    """Returns seconds of the smallest operator, launched one by one and (GPU) in a CUDA graph, and
    of waiting for a device that does nothing."""
    call = partial(torch.zeros(16, device=setting.device).add_, 1.0)
    timer.launched(call, LAUNCHES)
    row = {
        "profile_s": setting.hardware.devices[0].kernel_latency_s,
        "eager_s": median(timer.launched(call, LAUNCHES) for _ in range(REPEATS)),
        "synchronise_s": timer.launched(timer.wait, LAUNCHES),
    }
    if setting.on_gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(LAUNCHES):
                call()
        row["graph_s"] = timer.typical(graph.replay) / LAUNCHES
    return row


def _copies(torch: Any, setting: Setting) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yields copies, each with the bytes that it moves."""
    size = COPIED_BYTES // setting.shrink
    here, there = (torch.ones(size // 4, device=setting.device) for _ in range(2))
    yield "on the device, read and written", 2 * size, partial(here.copy_, there)
    if setting.on_gpu:
        pageable = torch.ones(size // 4)
        pinned = pageable.pin_memory()
        yield "from the host, pageable", size, partial(here.copy_, pageable)
        yield "from the host, pinned", size, partial(here.copy_, pinned, non_blocking=True)
        yield "to the host, pinned", size, partial(pinned.copy_, here, non_blocking=True)
