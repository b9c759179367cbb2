"""One search: a graph on a number of GPUs. All answers are based on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from math import inf
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import Costed, SearchProblem, costed
from shardwise.cost.offloading import too_large_for_hosts
from shardwise.cost.options import TOFU, Options, Progress, quiet
from shardwise.cost.pins import pinned_precision
from shardwise.cost.shares import Shares
from shardwise.errors import BadInput, NotFound, SolverError
from shardwise.graph import Graph, content_id
from shardwise.hardware import Hardware, Mesh, TooFewDevices
from shardwise.replay.kit import Kits
from shardwise.replay.mixed.replay import MixedKits
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.replay.replay import Replayed, Replayer, StrategyReplayer
from shardwise.search.solution import Solution
from shardwise.search.solver_errors import solver_errors
from shardwise.search.tofu import tofu
from shardwise.sharding.coarsen import Coarsened, coarsen
from shardwise.sharding.experts import has_experts
from shardwise.sharding.fusion import Fusing
from shardwise.sharding.imbalance import unbalanced
from shardwise.sharding.micro_batches import split_batch
from shardwise.sharding.pattern import Patterns
from shardwise.sharding.precision import narrow
from shardwise.sharding.routing import ROUTED
from shardwise.tdl import registry


class Infeasible(NotFound):
    """No strategy fits; the message is the reason."""


@dataclass(frozen=True)
class Subject:
    """A graph prepared once for many searches: coarsened, with its boundary analysis."""

    graph: Graph
    id: str
    coarsened: Coarsened
    patterns: Patterns
    kits: Kits = field(default_factory=dict)
    """Cache of the subject's step programs (`replay/kit.py`)."""
    mixed_kits: MixedKits = field(default_factory=MixedKits)
    """The same on devices of several kinds."""
    _variants: dict[Hashable, Patterns] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, *, join: bool = True) -> Subject:
        """Returns the subject of a graph; one derived by an option has the id of its original.

        `join` as in `coarsen`: without it every operator is searched on its own.
        """
        coarsened = coarsen(graph, lambda op: registry.analyse(op, graph.tensors), join=join)
        return cls(graph, content_id(graph), coarsened, Patterns(coarsened))

    def __reduce__(self) -> tuple[type[Subject], tuple[object, ...]]:
        """A pickled subject leaves its step programs behind: they exist in one process only."""
        return Subject, (self.graph, self.id, self.coarsened, self.patterns)

    @cached_property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        return has_experts(self.coarsened)

    @cached_property
    def routes_rows(self) -> bool:
        """Whether rows may be sent to the experts of a mixture."""
        return any(ROUTED in group.variables for group in self.coarsened.groups)

    def variant(self, options: Options, micro_batches: int) -> Patterns:
        """Returns the groups under the options' precision and micro-batch size.

        Raises `BadInput` if the micro-batch count does not divide the batch.
        """
        rules = tuple(pin for pin in options.pins if pin.key == "precision")
        key = (
            *(options.precision, rules, options.launching.torchao),
            *(micro_batches, options.fusing, options.expert_imbalance),
        )
        if key not in self._variants:
            narrowed = narrow(
                unbalanced(self.coarsened, options.expert_imbalance),
                options.precision,
                lambda op: pinned_precision(rules, op),
                torchao=options.launching.torchao,
            )
            changed = split_batch(narrowed, micro_batches)
            same = changed is self.coarsened and options.fusing == Fusing()
            self._variants[key] = self.patterns if same else Patterns(changed, options.fusing)
        return self._variants[key]


@dataclass(frozen=True)
class Line:
    """A proven bound for every limit M: no strategy within M is faster than at_zero_s - price M."""

    at_zero_s: float
    price: float

    def at(self, limit_bytes: float) -> float:
        """Returns the bound in seconds for a limit."""
        return self.at_zero_s - self.price * limit_bytes if self.price else self.at_zero_s


@dataclass(frozen=True)
class Proof:
    """Lower bounds on every strategy's replayed step.

    Every strategy takes at least `least_s`, at least each of the `lines` within a memory, and has a
    peak of at least `least_bytes`. If there are `parts`, one of them also holds for it.
    """

    least_s: float = 0.0
    least_bytes: float = 0.0
    lines: tuple[Line, ...] = ()
    parts: tuple[Proof, ...] = ()

    def without_parts(self) -> Proof:
        """Returns the proof without its parts."""
        return replace(self, parts=())

    def bound_s(self, limit_bytes: float) -> float:
        """Returns a lower bound on every strategy within a limit (infinite: none fits)."""
        if self.least_bytes > limit_bytes:
            return inf
        of_parts = min((part.bound_s(limit_bytes) for part in self.parts), default=0.0)
        return max((self.least_s, of_parts, *(line.at(limit_bytes) for line in self.lines)))


@dataclass(frozen=True)
class Charges:
    """The time charges of a game's best query, in seconds, and the memory that it priced (None:
    none)."""

    time: OwnerCosts
    held: OwnerCosts | None


@dataclass(frozen=True)
class Search:
    """A solved search. Points ascend in memory; `choices` has shape (points, groups)."""

    subject: Subject
    hardware: Hardware
    mesh: Mesh
    options: Options
    problem: SearchProblem
    solution: Solution
    replayer_of: Callable[[], StrategyReplayer]
    """Returns the problem's replayer, built on first use."""
    proof: Proof | None = None
    """The proof, if replayed times were searched."""
    charges: Charges | None = None
    """The costs that stand for replayed time in eliminations, if a game was played."""

    @property
    def micro_batches(self) -> int:
        return self.problem.context.micro_batches

    @property
    def replayer(self) -> StrategyReplayer:
        """Replays strategies of the problem."""
        return self.replayer_of()

    @property
    def own_replayer(self) -> Replayer:
        """The replayer, for devices of one kind.

        Raises `TypeError` if there are several kinds.
        """
        replayer = self.replayer
        if not isinstance(replayer, Replayer):
            raise TypeError("devices of several kinds have a replayer for each place")
        return replayer

    @cached_property
    def replayed(self) -> Replayed:
        """Peak memory and overlapped time of every point (`replay.py`)."""
        if len(self.solution.choices) == 0:
            return Replayed.of_none()
        return self.replayer.replay(self.solution.choices, self.solution.edge_choices)

    @property
    def ranking_s(self) -> NDArray[np.float64]:
        """The time that ranks the points: the replayed one, or the sum."""
        return self.replayed.time_s if self.options.overlap else self.time_s

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Which points fit the memory limit when they are replayed."""
        return np.asarray(self.replayed.peak_bytes <= self.limit_bytes)

    @property
    def limit_bytes(self) -> float:
        """The memory limit of one device."""
        return self.options.limit_for(self.device_memory_bytes)

    @property
    def device_memory_bytes(self) -> float:
        """The memory of one device, the least if there are several kinds."""
        return self.hardware.devices[0].memory_bytes

    @property
    def profiles(self) -> tuple[Hardware, ...]:
        """The profile of each kind of device."""
        return (self.hardware,)

    def problem_of(self, point: int) -> SearchProblem:
        """Returns the problem as the busiest devices of a point see it."""
        return self.problem

    @property
    def memory_bytes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self.solution.memory_bytes + self.problem.fixed_memory_bytes

    @property
    def time_s(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self.solution.time_s + self.problem.fixed_time_s

    def compute_s(self, point: int) -> float:
        """Returns the compute time of a point; the rest is communication."""
        chosen = self.solution.choices[point]
        total = self.problem.fixed_time_s
        for cost, choice in zip(self.problem.costs, chosen, strict=True):
            total += float(cost.compute_s[choice])
        return total

    def compute_shares(self, point: int) -> Shares:
        """Returns the sources of a point's compute time, as shares; constants count as modelled."""
        hardware = self.hardware
        if not (hardware.operator_times.known or hardware.devices[0].has_kernels):
            return Shares(modelled_s=self.compute_s(point))
        total = np.array([0.0, 0.0, self.problem.fixed_time_s])
        for cost, choice in zip(self.problem.costs, self.solution.choices[point], strict=True):
            total += cost.compute_by_source_s[choice]
        return Shares.of_columns(total)

    def fastest_within(self, limit_bytes: float) -> int | None:
        """Returns the fastest point whose memory adds up to at most `limit_bytes`, or None."""
        fitting = np.flatnonzero(self.memory_bytes <= limit_bytes)
        return int(fitting[-1]) if len(fitting) else None

    def plan_id(self, point: int) -> str:
        """Returns the content id of a plan: a hash of the query and the choices."""
        digest = hashlib.sha256()
        axes = [(axis.name, axis.size) for axis in self.problem.context.mesh.axes]
        digest.update(repr((self.subject.id, self.hardware.id, self.mesh.gpus, axes)).encode())
        tuning = filter(None, (self.subject.graph.tuning,))
        for part in (self.options.optimizer, self.options.precision, self.micro_batches, *tuning):
            digest.update(repr(part).encode())
        for cost, k in zip(self.problem.costs, self.solution.choices[point], strict=True):
            digest.update(cost.assignment[k].tobytes())
            digest.update(repr((cost.zero[k], cost.zero_axes[k], cost.recompute[k])).encode())
        digest.update(self.solution.edge_choices[point].astype("<u4").tobytes())
        return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True)
class Draft:
    """A query with all group costs, without crossings or an answer."""

    subject: Subject
    hardware: Hardware
    mesh: Mesh
    options: Options
    groups: Costed

    @classmethod
    def of(
        cls,
        subject: Subject,
        hardware: Hardware,
        mesh: Mesh,
        options: Options,
        progress: Progress,
        micro_batches: int,
    ) -> Draft:
        """Returns the draft with `micro_batches` in a step; raises as `assemble`, and `Infeasible`
        if states do not fit on the hosts."""
        variant = subject.variant(options, micro_batches)
        problem = too_large_for_hosts(variant.graph, hardware, mesh, options)
        if problem is not None:
            raise Infeasible(problem)
        groups = costed(variant, hardware, mesh, options, progress, micro_batches)
        return cls(subject, hardware, mesh, options, groups)

    @property
    def limit_bytes(self) -> float:
        """The memory limit of one device."""
        return self.options.limit_for(self.hardware.devices[0].memory_bytes)

    def joined(self, progress: Progress) -> Search:
        """Returns the search with all crossings, without points."""
        return self._search(self.groups.joined(progress))

    def alone(self) -> Search:
        """Returns an empty search, given up before it began."""
        return self._search(self.groups.alone())

    def _search(self, problem: SearchProblem) -> Search:
        replayer_of = cache(partial(Replayer, problem, self.options.step, self.subject.kits))
        nothing = Solution.empty(problem)
        return Search(
            self.subject, self.hardware, self.mesh, self.options, problem, nothing, replayer_of
        )


def search(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress = quiet,
    *,
    near_limit: bool = False,
    micro_batches: int = 1,
) -> Search:
    """Tracks the frontier of `subject` on `gpus` devices with `micro_batches` in a step.

    With `near_limit` only the neighbourhood of the memory limit is searched, which is enough for
    the shortest time under that limit. Raises `Infeasible` if the hardware has fewer devices,
    `BadInput` for a count below 1, `SolverError` if a limit is met and `Cancelled` if `progress`
    returns False before there is any answer.
    """
    mesh = mesh_of(hardware, gpus)
    started = monotonic()
    draft = Draft.of(subject, hardware, mesh, options, progress, micro_batches)
    drafted = draft.joined(progress)
    problem = drafted.problem
    if options.time_limit_s is not None:
        left = options.time_limit_s - (monotonic() - started)
        if left <= 0:
            raise SolverError("the time limit passed before the search began")
        options = replace(options, time_limit_s=left)
    if options.method == TOFU:
        with solver_errors():
            solution: Solution = tofu(problem, options, progress)
    else:
        near = options.limit_for(hardware.devices[0].memory_bytes) if near_limit else None
        solution = _track(problem, options, progress, near)
    return replace(drafted, options=options, solution=solution)


def mesh_of(hardware: Hardware, gpus: int) -> Mesh:
    """Returns the mesh of this many devices; raises `BadInput` and `Infeasible` as `search`."""
    if gpus < 1:
        raise BadInput(f"{gpus} GPUs", field="gpus", expected="a whole number of at least 1")
    try:
        return Mesh.build(hardware, gpus)
    except TooFewDevices as reason:
        raise Infeasible(str(reason)) from None


def search_all(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress = quiet,
    *,
    near_limit: bool = False,
) -> list[Search]:
    """Returns one search per micro-batch count in the options.

    Raises as `search` does.
    """
    counts = options.counts(subject.graph.batch_size)

    def one_of(position: int) -> Progress:
        return lambda stage, fraction: progress(stage, (position + fraction) / len(counts))

    return [
        search(
            subject,
            hardware,
            gpus,
            options,
            one_of(position),
            near_limit=near_limit,
            micro_batches=count,
        )
        for position, count in enumerate(counts)
    ]


def search_near(
    first: Search,
    near_bytes: float | None,
    time_limit_s: float | None,
    progress: Progress = quiet,
    *,
    work_limit: int | None = None,
) -> Search:
    """Searches the same query near another memory (None: everywhere), within `time_limit_s` and the
    work limit of `_core.solve`.

    Raises as `search` does.
    """
    options = replace(first.options, time_limit_s=time_limit_s)
    solution = _track(first.problem, options, progress, near_bytes, work_limit)
    return replace(first, solution=solution)


def _track(
    problem: SearchProblem,
    options: Options,
    progress: Progress,
    near_bytes: float | None,
    work_limit: int | None = None,
) -> Solution:
    target = None if near_bytes is None else max(near_bytes - problem.fixed_memory_bytes, 0.0)
    with solver_errors():
        solved = _core.solve(
            problem.sums.problem,
            method=options.method,
            epsilon=options.epsilon,
            memory_target_bytes=target,
            time_limit_s=options.time_limit_s,
            memory_limit_bytes=options.search_memory_bytes,
            work_limit=work_limit,
            threads=options.threads,
            progress=progress,
        )
    return Solution.of(problem.sums, solved)
