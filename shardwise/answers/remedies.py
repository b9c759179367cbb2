"""Remedies: options and device counts, all tried, under which an infeasible query fits.

The query is repeated with each option that lowers its peak, in the order of how little they change
the training: how a step runs, then the strategy's choices, then the numbers kept. If no option is
enough alone, the smallest sufficient combination is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

from shardwise.cost.options import AUTO, MOMENTS, NEVER, ZERO_STAGES, Options, Progress
from shardwise.cost.step_settings import CAPTURED, CUDA, EIGHT_BITS, FLOAT32, SHARDS
from shardwise.documents import Plan
from shardwise.errors import BadInput, Cancelled, SolverError
from shardwise.graph import Graph
from shardwise.hardware import Devices, TooFewDevices
from shardwise.search.search import Infeasible
from shardwise.sharding.fusion import CHUNKED, CROSS_ENTROPY
from shardwise.texts import counted, gib

FITS = "; it fits "
BY_OPTIONS = f"{FITS}with "
"""The sentence of an error about sufficient options."""

Answer = TypeVar("Answer", bound=Plan)
Ask = Callable[[Options, Devices, Progress], Answer]
"""Answers a query with these options on these devices; raises `Infeasible`."""

MOST_S = 30.0
"""Time limit in seconds, or `PATIENCE` times the query's own time; 20 were enough for Llama 3 8B on
a GPU of 80 GB (two cores)."""
PATIENCE = 2.0
MOST_NAMED = 2
COUNTS = 2
"""Micro-batch counts per try."""
MOST_DOUBLINGS = 3
COARSE = 10.0
"""The epsilon of a try, which only decides whether something fits."""


@dataclass(frozen=True)
class Change:
    """Changed options: the command line's words, and the members."""

    words: str
    members: Mapping[str, Any]

    def of(self, options: Options) -> Options:
        """Returns the options with the change made."""
        members = dict(self.members)
        step = replace(options.step, **members.pop("step", {}))
        return replace(options, step=step, **members)


def answered(
    ask: Ask[Answer],
    graph: Graph,
    options: Options,
    devices: Devices,
    progress: Progress,
    *,
    again: Ask[Plan] | None = None,
    own_program: bool = True,
) -> Answer:
    """Returns the answer of `ask`; if nothing fits, adds remedies to the error.

    `again` asks the same with less effort, for tries. `own_program`: how a step runs may be
    changed, which a trainer decides itself. Raises as `ask`.
    """
    started = monotonic()
    try:
        return ask(options, devices, progress)
    except Infeasible as reason:
        most_s = max(MOST_S, PATIENCE * (monotonic() - started))
        tries = _Trying(again or ask, graph.batch_size, options, devices, progress, most_s)
        named = tries.remedies(list(_changes(graph, options, own_program=own_program)))
        fits = f"{FITS}{' or '.join(named)}" if named else ""
        raise Infeasible(f"{reason}{fits}") from None


def _changes(graph: Graph, options: Options, *, own_program: bool) -> Iterator[Change]:
    """Yields the changes that may lower the peak, the smallest first."""
    step = options.step
    narrow = any(t.role == "parameter" and t.dtype == "float32" for t in graph.tensors.values())
    if own_program:
        if step.device == CUDA and step.update != "fused":
            yield Change("--update fused", {"step": {"update": "fused"}})
        crosses = any(op.kind == CROSS_ENTROPY for op in graph.operators)
        if crosses and options.fusing.loss != CHUNKED:
            yield Change("--loss chunked", {"loss": CHUNKED})
        if step.accumulation != SHARDS:
            yield Change(f"--accumulate {SHARDS}", {"step": {"accumulation": SHARDS}})
    if set(options.zero) != set(ZERO_STAGES):
        yield Change(f"--zero {','.join(map(str, ZERO_STAGES))}", {"zero": ZERO_STAGES})
    if options.micro_batches:
        yield Change("any number of micro-batches", {"micro_batches": ()})
    if options.recomputation == NEVER:
        yield Change(f"--recompute {AUTO}", {"recompute": AUTO})
    if own_program:
        if options.precision == "captured" and narrow:
            yield Change("--precision bf16", {"precision": "bf16"})
        if step.gradients == FLOAT32:
            yield Change(f"--gradients {CAPTURED}", {"step": {"gradients": CAPTURED}})
        if MOMENTS[options.optimizer] and step.state != EIGHT_BITS:
            yield Change(f"--state {EIGHT_BITS}", {"step": {"state": EIGHT_BITS}})


class _Trying:
    """Tries variants of a query within a time limit."""

    def __init__(
        self,
        ask: Ask[Any],
        batch: int | None,
        options: Options,
        devices: Devices,
        progress: Progress,
        most_s: float,
    ) -> None:
        self._ask = ask
        self._batch = batch
        self._options = options
        self._devices = devices
        self._progress = progress
        self._until = monotonic() + min(most_s, options.time_limit_s or most_s)

    def remedies(self, changes: Sequence[Change]) -> list[str]:
        """Returns the remedies found in time, in words with their peaks."""
        named: list[str] = []
        try:
            named += self._by_options(changes)
            named += self._by_devices()
        except Cancelled:
            pass
        return named

    def _by_options(self, changes: Sequence[Change]) -> list[str]:
        together = self._peak(changes) if changes else None
        if together is None:
            return []
        alone: list[str] = []
        for change in changes:
            peak = self._peak([change])
            if peak is not None:
                alone.append(_text([change], peak))
            if len(alone) == MOST_NAMED:
                return alone
        return alone or [self._fewest(changes, together)]

    def _fewest(self, changes: Sequence[Change], peak_bytes: float) -> str:
        """Returns a minimal subset of changes, from the first on, given that all together have this
        peak."""
        needed = list(changes)
        for change in reversed(changes):
            fewer = [one for one in needed if one is not change]
            peak = self._peak(fewer)
            if peak is not None:
                needed, peak_bytes = fewer, peak
        return _text(needed, peak_bytes)

    def _by_devices(self) -> list[str]:
        if self._devices.of_groups:
            return []
        for doubling in range(1, MOST_DOUBLINGS + 1):
            devices = Devices.alike(self._devices.gpus * 2**doubling)
            try:
                peak = self._peak([], devices)
            except (BadInput, TooFewDevices):
                return []
            if peak is not None:
                return [f"on {counted(devices.gpus, 'GPU')} ({gib(peak)} GiB per GPU)"]
        return []

    def _peak(self, changes: Sequence[Change], devices: Devices | None = None) -> float | None:
        """Returns the peak of an answer, or None if nothing fits."""
        options = replace(self._options, epsilon=max(COARSE, self._options.epsilon))
        for change in changes:
            options = change.of(options)
        places = devices or self._devices
        counts = _smallest(options.counts(self._batch), places.gpus, self._batch)
        options = replace(options, micro_batches=counts)
        try:
            answer = self._ask(options, places, self._watched)
        except (Infeasible, SolverError):
            return None
        return float(answer.predicted.peak_bytes)

    def _watched(self, stage: str, fraction: float) -> bool:
        return self._progress("what would fit", fraction) and monotonic() < self._until


def _smallest(counts: Sequence[int], devices: int, batch: int | None) -> tuple[int, ...]:
    """Returns the micro-batch counts to try: the largest that leave every device a sample, and the
    next."""
    if batch is None:
        return tuple(counts)

    def rank(count: int) -> tuple[bool, int]:
        return count * devices > batch, abs(count * devices - batch)

    return tuple(sorted(sorted(counts, key=rank)[:COUNTS]))


def _text(changes: Sequence[Change], peak_bytes: float) -> str:
    return f"with {' '.join(change.words for change in changes)} ({gib(peak_bytes)} GiB per GPU)"
