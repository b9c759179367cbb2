"""What the host takes to launch work: for one pass of an operator, and for one collective.

    t_operator    = t(forward and backward) / n       layers so small that the device waits for its
                                                      host; n passes, counted as in `cost/host.py`
    t_collective  = t(call) of a small all_reduce that is not waited for, many in a row

Both are wall-clock seconds of eager PyTorch, all ranks at once, of the slowest rank: the others
wait for it. t_operator is the median over several stacks of layers, each the median of its repeats;
n has the passes of `shardwise.hardware.host.Host`, so that a product's backward counts twice.

They are a profile's `host` only where a device runs beside its host. A CPU computes in the call
itself, and what the call takes is part of its operators' times, measured or not
(`Device.kernel_latency_s`); there the same functions tell what a framework takes of tiny operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from shardwise.answers import plan
from shardwise.cost.options import Options
from shardwise.cost.software import EAGER as EAGER_TORCH
from shardwise.errors import CaptureError
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.hardware.host import EAGER, Host
from shardwise.measure.rank import Rank
from shardwise.measure.real_module import SizedSource, real_module

TINY_GPT2 = "hf:GPT2Config:n_embd=64,n_head=2,vocab_size=256,n_layer="
STACKS = (
    SizedSource("16 linear layers", "zoo:mlp:layers=16,inputs=64,hidden=64", 8),
    SizedSource("gpt2, 8 layers of 64", f"{TINY_GPT2}8", 2, 32),
    SizedSource("resnet18 at 32 px", "timm:resnet18:img_size=32", 2),
)
"""Layers that take a GPU a few microseconds each, fewer than their launch."""

REPEATS, STEPS = 5, 10
ELEMENTS, CALLS = 256, 100
"""Of a collective: float32, and how many calls are in flight. NCCL takes some thousand kernels
before a launch waits for the device."""

COUNTING = "dgx-h100"
"""Any profile: passes do not depend on the device."""


@dataclass(frozen=True)
class MeasuredHost:
    """A host's times, the names of the stacks that `operator_s` is the median of, and whether
    `collective_s` was measured; it is that of the built-in profiles where one rank is alone."""

    host: Host
    stacks: tuple[str, ...]
    with_collective: bool

    def source(self, when: str) -> str:
        """Returns where the times come from; `when` is a date."""
        collective = (
            f"collective_s: the call of an all_reduce of {ELEMENTS} float32, not waited for"
            if self.with_collective
            else "collective_s as in the built-in profiles, for one rank has no collectives"
        )
        return (
            f"measured on {when}: operator_s: the median of small layers, forward and backward "
            f"({'; '.join(self.stacks)}); {collective}"
        )


def measure_host(
    rank: Rank, group: Any, limit_s: float, stacks: Sequence[SizedSource] = STACKS
) -> MeasuredHost | None:
    """Returns the host's times, the same on every rank; None where no stack can be built.

    `group` is the process group whose collectives are launched, None where a rank is alone.
    `limit_s` bounds the time: a stack is left out once none is left, or less than the longest took,
    except the first.
    """
    began = perf_counter()
    collective_s = EAGER.collective_s if group is None else _collective_s(rank, group)
    found: dict[str, float] = {}
    longest_s = 0.0
    for stack in stacks:
        left_s = rank.left_s(limit_s, began)
        if found and left_s <= longest_s:
            break
        operator_s = _operator_s(rank, stack)
        if operator_s is not None:
            found[stack.name] = operator_s
        longest_s = max(longest_s, left_s - rank.left_s(limit_s, began))
    if not found:
        return None
    host = Host(median(found.values()), collective_s)
    return MeasuredHost(host, tuple(found), group is not None)


def passes_of(graph: Graph) -> int:
    """Returns how many passes of operators a host launches in forward and backward of a graph."""
    counting = replace(load_hardware(COUNTING), host=Host(1.0, 0.0))
    options = Options(
        zero=(0,),
        recompute="never",
        micro_batches=(1,),
        memory_limit_bytes=1e15,
        framework=EAGER_TORCH,
    )  # one strategy, which no memory refuses
    return round(float(plan(graph, counting, 1, options=options).predicted.host_s or 0.0))


def launched_s(call: Callable[[], object], wait: Callable[[], None], calls: int = 1) -> float:
    """Returns the seconds of one of `calls`, launched without waiting in between.

    `wait` returns when the device has done all that was launched.
    """
    wait()
    began = perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (perf_counter() - began) / calls


def repeats_s(call: Callable[[], object], wait: Callable[[], None]) -> list[float]:
    """Returns the seconds of one call in each of REPEATS repeats of STEPS calls."""
    return [launched_s(call, wait, STEPS) for _ in range(REPEATS)]


def _operator_s(rank: Rank, stack: SizedSource) -> float | None:
    """Returns the seconds of one pass; None where a rank cannot build the stack."""
    try:
        graph = stack.captured()
        passes, gradients = passes_of(graph), real_module(stack, graph, rank.device).gradients
    except CaptureError:  # a library is missing, or another version than the extra asks for
        passes = 0
    if rank.worst([float(not passes)])[0]:
        return None
    gradients()
    rank.barrier()
    return _slowest_s(rank, repeats_s(gradients, rank.synchronise)) / passes


def _collective_s(rank: Rank, group: Any) -> float:
    """Returns the seconds until the call of a collective returns."""
    torch = rank.torch
    buffer = torch.zeros(ELEMENTS, device=rank.device)

    def calls_s() -> float:
        rank.barrier()
        began = perf_counter()
        works = [
            torch.distributed.all_reduce(buffer, group=group, async_op=True) for _ in range(CALLS)
        ]
        took_s = perf_counter() - began
        for work in works:
            work.wait()
        rank.synchronise()
        return took_s / CALLS

    calls_s()  # connects the ranks
    return _slowest_s(rank, [calls_s() for _ in range(REPEATS)])


def _slowest_s(rank: Rank, seconds: Sequence[float]) -> float:
    """Returns the median of the slowest rank's repeats."""
    return float(np.median(rank.worst(seconds)))
