"""Measures calls of operators, within a time and a memory limit, alone or next to siblings.

Calls are measured in the given order (most expensive first), in up to three rounds, of which the
middle one counts. Calls that the time limit keeps out of the first round are not measured, and are
reported. With `ranks` above 1 on CPUs, that number of processes measure the same call at once, as
training ranks would: they share caches, memory and cores (`siblings.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Protocol

from shardwise.graph.graph import DTYPE_BYTES
from shardwise.hardware.operator_tables import OperatorTable
from shardwise.measure.busy import OVERRIDE, DeviceBusy, busy_gpus
from shardwise.measure.operators.bench import Alone, threads_of, threads_set
from shardwise.measure.operators.clock import Timing
from shardwise.measure.operators.effort import Effort
from shardwise.measure.operators.needed import OperatorItem
from shardwise.measure.operators.operands import bytes_of
from shardwise.measure.operators.siblings import Siblings
from shardwise.measure.operators.tables import tables_of
from shardwise.torch_operators import load_torch

ROUNDS = 3
"""How often all calls are measured: a disturbance hits neighbours in time, not every round."""

LONGEST_CALL_S = 2.0
SHORTEST_BUDGET_S = 0.02
GRADIENTS = 3.0
"""Operands, outputs, the gradients of both and what backward makes, relative to the first two."""

CHECK_S = 2.0
"""Seconds between checks whether another process is using the GPU."""

TOO_LARGE = "it needs more memory than the limit"

Tell = Callable[[str, float], bool]


@dataclass(frozen=True)
class Measured:
    """The tables, and the calls without one: `left` by the time limit, `refused` with the reason.

    `seconds` is the time that measuring took.
    """

    tables: tuple[OperatorTable, ...]
    left: tuple[OperatorItem, ...]
    refused: tuple[tuple[OperatorItem, str], ...]
    seconds: float

    def notes(self) -> list[str]:
        """Returns what was not measured, one line per reason."""
        lines = []
        if self.left:
            share = sum(item.expected_s for item in self.left)
            lines.append(
                f"{len(self.left)} calls ({share:.3g} s of a step by the roofline) are left to "
                "interpolation: the time limit was reached"
            )
        reasons: dict[str, list[str]] = {}
        for item, reason in self.refused:
            reasons.setdefault(reason, []).append(f"{item.family.kind} {item.family.direction}")
        for reason, kinds in reasons.items():
            lines.append(
                f"{len(kinds)} calls of {', '.join(sorted(set(kinds)))} are not measured: {reason}"
            )
        return lines


class TimesCalls(Protocol):
    """Whatever times one call: a process alone, several at once, the ranks of a job."""

    def measure(self, item: OperatorItem, budget_s: float) -> Timing | str:
        """Returns the timing of one item, or the reason why there is none."""
        ...


def measure_operators(
    items: Sequence[OperatorItem], effort: Effort, tell: Tell | None = None
) -> Measured:
    """Measures calls in order. `tell` receives progress; returning False stops measuring.

    Raises `DeviceBusy` if another process is on the GPU, before or while it is measured,
    `ShardwiseError` without torch or if a sibling ends.
    """
    torch = load_torch()
    if effort.ranks > 1:
        with Siblings(effort) as siblings:
            return measure_with(siblings, items, effort, tell)
    watch = _Watch(torch, effort)
    with threads_set(torch, threads_of(effort) or torch.get_num_threads()):
        return measure_with(Alone(torch, effort), items, effort, tell, watch.check)


def _no_check() -> None:
    """Does nothing: CPUs always have other processes."""


def measure_with(
    bench: TimesCalls,
    items: Sequence[OperatorItem],
    effort: Effort,
    tell: Tell | None = None,
    check: Callable[[], None] = _no_check,
    threads: int | None = None,
) -> Measured:
    """Measures calls in order on a bench; `check` runs before each call, and `threads` is what each
    rank has, as `effort` says if None."""
    began = monotonic()
    rounds: dict[OperatorItem, list[Timing]] = {}
    refused: dict[OperatorItem, str] = {
        item: TOO_LARGE
        for item in items
        if bytes_of(item, DTYPE_BYTES) * GRADIENTS > effort.memory_limit_bytes
    }
    for turn in range(ROUNDS * len(items)):
        item = items[turn % len(items)]
        check()
        spent = monotonic() - began
        going = tell is None or tell(_words(item), turn / (ROUNDS * len(items)))
        if spent > effort.time_limit_s or not going:
            break
        if item in refused:
            continue
        calls_left = ROUNDS * len(items) - turn
        outcome = bench.measure(item, _budget(effort.time_limit_s - spent, calls_left))
        if isinstance(outcome, str):
            refused[item] = outcome
        else:
            rounds.setdefault(item, []).append(outcome)
    results = {item: _middle(timings) for item, timings in rounds.items()}
    left = tuple(item for item in items if item not in results and item not in refused)
    kept = [(item, timing) for item, timing in results.items() if item not in refused]
    tables = tables_of(kept, effort, threads_of(effort) if threads is None else threads)
    return Measured(tables, left, tuple(refused.items()), monotonic() - began)


def _middle(rounds: Sequence[Timing]) -> Timing:
    """Returns the middle round, of two the faster: as typical as the steps that come later.

    The fastest of three is a machine's best: on machines that neighbours slow for seconds at a
    time, steps took a tenth longer than the sum of such calls.
    """
    middle = sorted(rounds, key=lambda timing: timing.time_s)[(len(rounds) - 1) // 2]
    return replace(middle, repetitions=sum(timing.repetitions for timing in rounds))


def _words(item: OperatorItem) -> str:
    return f"{item.family.kind} {item.family.direction}"


def _budget(left_s: float, calls: int) -> float:
    """Returns twice an even share: most calls are stable before."""
    return min(max(2.0 * left_s / calls, SHORTEST_BUDGET_S), LONGEST_CALL_S)


class _Watch:
    """Watches for other processes on the GPU; does nothing on a CPU."""

    def __init__(self, torch: Any, effort: Effort) -> None:
        self._watching = effort.device != "cpu" and not effort.allow_busy
        self._last = monotonic()
        if not self._watching:
            return
        if reason := busy_gpus(1):
            raise DeviceBusy(f"{reason}; {OVERRIDE}")
        # This process is on the device from here on; NVML may know it by another number.
        torch.zeros(1, device=effort.device)
        self._ours = busy_gpus(1)

    def check(self) -> None:
        """Raises `DeviceBusy` if another process has appeared."""
        if not self._watching or monotonic() - self._last < CHECK_S:
            return
        self._last = monotonic()
        if (reason := busy_gpus(1)) != self._ours:
            raise DeviceBusy(f"while it was measured: {reason}; {OVERRIDE}")
