"""Steps of a model on one device, eager and compiled, against their predictions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from shardwise.execute.allocation import AllocationTracker
from shardwise.measure.real_module import SizedSource

from .model import Trained, predicted, trained
from .parts import Row, Work, one_line
from .setting import Setting
from .timing import Timer

WARM_UP, STEPS, UPDATES = 3, 10, 3


def measure(setting: Setting, work: Work, model: SizedSource) -> None:
    """Tells predictions and measured steps; the compiled ones come last, since compiling may take
    longer than there is time."""
    import torch

    work.tell("doing", f"capturing {model.name}")
    graph = model.captured(setting.dtype)
    expected = {}
    for framework in ("eager", "compiled"):
        names = (("profile", setting.hardware), ("measured_profile", setting.measured))
        both = {name: predicted(graph, profile, setting, framework) for name, profile in names}
        expected[framework] = both
    ready = trained(model, graph, setting)

    def run(how: str, ready: Trained) -> None:
        work.tell("doing", f"running {model.name}, {how}")
        row: Row = {"model": model.name, "how": how, "batch": model.batch, "tokens": model.seq}
        try:
            row |= _steps(torch, setting, ready, how)
        # Compilers fail in their own ways, and what fits is what this finds out.
        except Exception as error:
            work.tell("left out", f"{model.name}, {how}: {one_line(error)}")
            return
        for name, found in expected[how.partition(",")[0]].items():
            row[f"{name}_s"] = found.replayed_time_s
            row[f"{name}_error"] = found.replayed_time_s / row["step_s"] - 1.0
            row |= {"predicted_peak_bytes": found.peak_bytes}
            row.setdefault("bound_by", found.bound_by)
        if row["peak_bytes"]:
            row["peak_error"] = row["predicted_peak_bytes"] / row["peak_bytes"] - 1.0
        work.tell("step", row)

    run("eager", ready)
    if ready.inputs[0].dim() == 4:
        images = ready.inputs[0].contiguous(memory_format=torch.channels_last)
        module = ready.module.to(memory_format=torch.channels_last)
        turned = replace(ready, module=module, inputs=(images, *ready.inputs[1:]))
        run("eager, channels last", turned)
        ready.module.to(memory_format=torch.contiguous_format)
    if model in setting.compiled:
        run("compiled", replace(ready, module=torch.compile(ready.module)))
    else:
        work.tell("left out", f"{model.name}, compiled: not in this run")


def _steps(torch: Any, setting: Setting, ready: Trained, how: str) -> Row:
    timer = Timer(torch, setting.on_gpu)
    warm_up_s = timer.launched(ready.step, WARM_UP) * WARM_UP
    peak: int | None = None
    if setting.on_gpu:
        torch.cuda.reset_peak_memory_stats()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
        events[0].record()
        for event in events[1:]:
            ready.step()
            event.record()
        timer.wait()
        seconds = [first.elapsed_time(second) / 1e3 for first, second in pairwise(events)]
        peak = torch.cuda.max_memory_allocated()
    else:
        seconds = [timer.launched(ready.step) for _ in range(STEPS)]
        if how != "compiled":
            peak = _peak_on_cpu(ready)
    return {
        "step_s": median(seconds),
        "update_s": median(timer.launched(ready.optimizer.step) for _ in range(UPDATES)),
        "warm_up_s": warm_up_s,
        "peak_bytes": peak,
    }


def _peak_on_cpu(ready: Trained) -> int:
    """Returns the most that the tensors of a step take at once, in bytes."""
    ready.optimizer.zero_grad()
    state = [value for one in ready.optimizer.state.values() for value in one.values()]
    tracker = AllocationTracker()
    there = [*ready.module.parameters(), *ready.module.buffers(), *state, *ready.inputs]
    tracker.follow(there, "there before the step")
    with tracker:
        ready.step()
    return int(tracker.peak_bytes)
