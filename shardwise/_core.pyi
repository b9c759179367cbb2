"""The solver (Rust, `solver/`). Memory in bytes, time in seconds."""

from collections.abc import Callable, Sequence
from typing import Literal, Self, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Cancelled",
    "Cells",
    "Problem",
    "Program",
    "Replays",
    "Solution",
    "Timeline",
    "equilibrium",
    "layout_changes",
    "least_time",
    "refilled",
    "replay_chosen",
    "shortest_paths",
    "solve",
    "version",
    "weighted_cells",
]

class Cancelled(RuntimeError):
    """The listener did not want the answer any more, and there was none yet."""

@final
class Problem:
    """A problem under construction: operators with costs per choice, edges with costs per pair.

    Costs, tables and row maps are shared by id, so that repeated layers are recognised. Every
    method raises `ValueError` for costs that are negative or not finite and for shapes or ids
    that do not fit.
    """

    def __new__(cls) -> Problem: ...
    def add_costs(self, memory_bytes: NDArray[np.float64], time_s: NDArray[np.float64]) -> int:
        """Costs of an operator's K choices, each of shape (K,); answers their id."""

    def add_operator(self, name: str, costs: int) -> int:
        """An operator with the costs of that id; answers its number."""

    def add_table(
        self,
        memory_bytes: NDArray[np.float64],
        time_s: NDArray[np.float64],
        count: NDArray[np.uint8],
    ) -> int:
        """Edge costs of shape (R, C, A); the first `count[r, c]` alternatives (1 or more) count."""

    def add_least_table(self, time_s: NDArray[np.float64], count: NDArray[np.uint8]) -> int:
        """Edge costs (R, C, A) without memory, of which each cell takes the least that counts."""

    def add_ragged_table(
        self,
        memory_bytes: NDArray[np.float64],
        time_s: NDArray[np.float64],
        count: NDArray[np.uint32],
    ) -> int:
        """Edge costs of shape (N,), cell by cell; `count[r, c]` (1 or more) belong to each cell."""

    def add_edge(
        self,
        source: int,
        target: int,
        table: int,
        rows: NDArray[np.uint32],
        columns: NDArray[np.uint32],
    ) -> int:
        """An edge; `rows[i]` is the row of source choice i, `columns[j]` that of target's j."""

@final
class Solution:
    """A frontier: points ascending in memory, strictly descending in time."""

    @property
    def memory_bytes(self) -> NDArray[np.float64]:
        """Shape (points,)."""

    @property
    def time_s(self) -> NDArray[np.float64]:
        """Shape (points,)."""

    @property
    def choices(self) -> NDArray[np.uint32]:
        """Shape (points, operators)."""

    @property
    def edge_choices(self) -> NDArray[np.uint32]:
        """Shape (points, edges): the alternative of each edge."""

    @property
    def exact(self) -> bool: ...
    @property
    def epsilon(self) -> float:
        """The proven certificate; infinity when nothing is proven."""

    @property
    def time_lower_bound_s(self) -> float | None:
        """With `memory_target_bytes`: no strategy within it is faster."""

    @property
    def status(self) -> str:
        """`exact`, `within_epsilon`, `heuristic`, `budget` or `cancelled`."""

    @property
    def seconds(self) -> float: ...
    @property
    def method(self) -> str: ...
    @property
    def statistics(self) -> dict[str, float]: ...

@final
class Program:
    """What devices do in one training step: tasks that hold resources, buffers, their uses.

    `resources` (R,) are orders: "program" starts tasks in the order of their numbers, "rank" the
    most urgent ready one whenever the resource is free, "rank-within-memory" passes one over while
    it would lift its device class above a limit and anything else runs or can start. `holds` (N, 2)
    are (task, resource), `dependencies` (N, 2) tasks (before, after), before < after. `makers` (B,)
    is the task that allocates each buffer, -1 for what is there before the first; `lasting` (B,) is
    never freed; `buffer_classes` (B,) is the device class whose memory it takes, 0 where not given.
    `uses` (N, 3) are (buffer, task, flag): the buffer is held until the task has ended, if the flag
    is set or -1. A strategy gives `given_flags` flags; `both` (N, 2) defines further ones as the
    conjunction of two earlier ones. `keeps` (N, 3) are (buffer, kept, flag): each use of the buffer
    counts as one of an earlier buffer too, if the flag is set or -1. `marks` (M,) are tasks of
    which replays tell when they ended. `conditions` (N, 2) are (task, flag), at most one per task:
    the task takes part only where the flag is set. Elsewhere it is void: it takes no time and holds
    nothing, no task waits for it and its uses do not count. A conditional task makes no buffer and
    holds no resource with the order "program". Raises `ValueError` for numbers that do not fit.
    """

    def __new__(
        cls,
        *,
        tasks: int,
        resources: Sequence[Literal["program", "rank", "rank-within-memory"]],
        holds: NDArray[np.uint32],
        dependencies: NDArray[np.uint32],
        makers: NDArray[np.int32],
        lasting: NDArray[np.bool_],
        uses: NDArray[np.int32],
        given_flags: int,
        both: NDArray[np.uint32],
        marks: NDArray[np.uint32],
        device_classes: int = 1,
        buffer_classes: NDArray[np.uint16] | None = None,
        conditions: NDArray[np.int32] | None = None,
        keeps: NDArray[np.int32] | None = None,
    ) -> Program: ...
    @property
    def tasks(self) -> int: ...
    @property
    def resources(self) -> int: ...
    @property
    def device_classes(self) -> int: ...
    @property
    def buffers(self) -> int: ...
    @property
    def flags(self) -> int:
        """How many flags a strategy gives."""

    def replay(
        self,
        durations_s: NDArray[np.float64],
        sizes_bytes: NDArray[np.float64],
        flags: NDArray[np.bool_],
        *,
        block_bytes: int = 512,
        limits_bytes: NDArray[np.float64] | None = None,
        urgency: Literal["rank", "depth", "fifo"] = "rank",
    ) -> Replays:
        """Replay P strategies: durations (P, T), sizes (P, B), flags (P, F).

        Sizes are rounded up to whole blocks. `limits_bytes` (K,) bounds each device class where a
        resource has the order "rank-within-memory"; without, nothing does. `urgency` says which
        ready task goes first where a resource does not keep the program's order: that with the
        longest path to the end of the step ("rank"), the shortest of the longest paths up to its
        own end ("depth"), or the first that became ready ("fifo"). Raises `ValueError` for
        shapes that do not fit, for costs that are negative or not finite, for negative limits.
        """

    def between(self, *, chain: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the nodes that each task runs after and before, under any strategy, (T,) each.

        Node 0 is the start of the step, node p + 1 the task at position p among those of resource
        `chain` (both are its own), the last node the end of the step. Of a conditional task they
        are the start and the end of the step, and no other task's follow from its dependencies.
        Raises `ValueError` for a resource without the program's order.
        """

    def longest_paths(
        self,
        durations_s: NDArray[np.float64],
        *,
        between: tuple[int, int] | None = None,
        chain: int = 0,
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the longest path of P strategies, durations (P, T): lengths (P,), members (P, T).

        The durations of a path's tasks add up to a lower bound on the time of the step under any
        strategy; with `between`, two tasks of the chain, on the time from the end of the first to
        the end of the second. `chain` is a resource with the program's order. No path leads through
        a conditional task. Raises `ValueError` for shapes and tasks that do not fit.
        """

    def trace(
        self,
        durations_s: NDArray[np.float64],
        sizes_bytes: NDArray[np.float64],
        flags: NDArray[np.bool_],
        *,
        block_bytes: int = 512,
        limits_bytes: NDArray[np.float64] | None = None,
        urgency: Literal["rank", "depth", "fifo"] = "rank",
    ) -> tuple[Replays, Timeline]:
        """Replay one strategy, (T,), (B,) and (F,), with its schedule."""

@final
class Replays:
    """What replays found, for P strategies, R resources and K device classes."""

    @property
    def peak_bytes(self) -> NDArray[np.float64]:
        """The highest peak of any device class, shape (P,)."""

    @property
    def peak_task(self) -> NDArray[np.int64]:
        """The task whose start reached it, -1 when it was there before the first, shape (P,)."""

    @property
    def class_peak_bytes(self) -> NDArray[np.float64]:
        """The peak of each device class, shape (P, K)."""

    @property
    def class_peak_task(self) -> NDArray[np.int64]:
        """The task whose start reached each, as `peak_task`, shape (P, K)."""

    @property
    def time_s(self) -> NDArray[np.float64]:
        """From the first start to the last end, shape (P,)."""

    @property
    def busy_s(self) -> NDArray[np.float64]:
        """How long tasks held each resource, shape (P, R)."""

    @property
    def mark_end_s(self) -> NDArray[np.float64]:
        """When each of the program's marks ended, 0 where it is void, shape (P, M)."""

@final
class Timeline:
    """One schedule, for T tasks and K device classes; of a void task all numbers are 0."""

    @property
    def start_s(self) -> NDArray[np.float64]:
        """When each task started, shape (T,)."""

    @property
    def end_s(self) -> NDArray[np.float64]:
        """When each task ended, shape (T,)."""

    @property
    def held_bytes(self) -> NDArray[np.float64]:
        """Right after each task's start, on all device classes together, shape (T,)."""

    @property
    def class_held_bytes(self) -> NDArray[np.float64]:
        """Right after each task's start, on each device class, shape (T, K)."""

    @property
    def at_peak(self) -> NDArray[np.uint32]:
        """The buffers held at the peak, of the device class with the highest, shape (N,)."""

    @property
    def class_at_peak(self) -> list[NDArray[np.uint32]]:
        """The buffers held at each device class's own peak."""

def solve(
    problem: Problem,
    *,
    method: str = "auto",
    epsilon: float = 0.0,
    memory_target_bytes: float | None = None,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    work_limit: int | None = None,
    threads: int = 0,
    progress: Callable[[str, float], bool] | None = None,
) -> Solution:
    """Track the frontier (TensorOpt Section 3).

    `memory_target_bytes` asks only for the neighbourhood of that memory. `memory_limit_bytes` is
    what tables and partial strategies may take beside the problem, `work_limit` how much work
    may be done, counted alike on every machine, busy or not: `statistics["work"]` of a solution, a
    hundred to three hundred thousand a second. `progress` gets a stage and a
    fraction, on the calling thread, some 20 times a second; answering False cancels, an exception
    that it raises (and a KeyboardInterrupt) ends the search and comes through.

    Raises `ValueError` for a setting out of range, `TimeoutError` when the time limit passes before
    any answer, `Cancelled` or, over budget, `RuntimeError` before any answer.
    """

def equilibrium(
    times: NDArray[np.float64], over: NDArray[np.float64], max_price: float
) -> tuple[float, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The game of S strategies, P paths and R limits: `times` (S, P), `over` (S, R).

    max v with v <= times[s] @ y + over[s] @ mu for every s, y a mix, 0 <= mu <= max_price. Answers
    v, the mix of paths (P,), the prices mu (R,), and the mix of strategies (S,). Raises
    `ValueError` for shapes that do not fit and where no equilibrium is reached.
    """

def least_time(
    problem: Problem,
    *,
    price: float = 0.0,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    threads: int = 0,
    progress: Callable[[str, float], bool] | None = None,
) -> tuple[float, tuple[float, float], NDArray[np.uint32], NDArray[np.uint32]]:
    """Find a strategy of the least time, where a byte of memory costs `price` seconds.

    Answers a bound that no strategy's time and price are below, the strategy's memory and time, its
    choices (operators,) and alternatives (edges,). Where the graph is wide the strategy may take a
    little longer than the bound. Limits, progress and errors are those of `solve`; a price that is
    negative or not finite is a `ValueError`.
    """

@final
class Cells:
    """Where the values of N items are: constants, and cells of tables in the rows that owners
    choose."""

    def __new__(
        cls,
        constants: NDArray[np.float64],
        picks: Sequence[tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]],
    ) -> Self:
        """Index cells: the number of each table, then items, their owners and their columns.

        All other items are their `constants` (N,). Raises `ValueError` for numbers of what there
        is not.
        """

    def fill(
        self,
        points: int,
        tables: dict[int, NDArray[np.float64]],
        rows: dict[int, NDArray[np.int64]],
    ) -> NDArray[np.float64]:
        """Return values (points, N) from the row of each table (R, columns) that the owner has
        chosen, `rows` (points, owners).

        Raises `KeyError` for a table that is not given, `ValueError` for shapes and rows that do
        not fit.
        """

def replay_chosen(
    program: Program,
    cells: tuple[Cells, Cells, Cells],
    points: int,
    tables: dict[int, NDArray[np.float64]],
    rows: dict[int, NDArray[np.int64]],
    *,
    block_bytes: int = 512,
    urgency: Literal["rank", "depth", "fifo"] = "rank",
) -> Replays:
    """Replay strategies as `Program.replay` does, with the durations, sizes and flags (set where
    they are not 0) that `cells` take from tables.

    Raises as `Program.replay` and `Cells.fill` do.
    """

def refilled(
    choices: NDArray[np.uint32],
    constant: float,
    groups: tuple[Sequence[NDArray[np.float64]], NDArray[np.int64]],
    edges: tuple[
        Sequence[
            tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float64]]
        ],
        NDArray[np.int64],
    ],
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Return the cheapest alternatives of edges (S, E) and the costs (S,) of S strategies.

    `choices` (S, G) are those of groups; `groups` are tables of what their choices cost, and the
    number of each group's. `edges` are tables: the row of each choice of the source, the column of
    each of the target, the cheapest alternative (R, C) and its costs (R, C); then source, target
    and table of each edge, (E, 3). Raises `ValueError` for numbers of what there is not.
    """

def weighted_cells(
    kept: NDArray[np.int8],
    once: NDArray[np.float64],
    there: NDArray[np.float64],
    back: NDArray[np.float64],
    *,
    column_flags: NDArray[np.bool_],
    row_flags: NDArray[np.bool_],
    there_again: NDArray[np.float64],
    back_again: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The cost of every alternative of an edge, (R, C, A), by what it keeps.

    That of its cell, `once` (R, C), and those of moving `there` and `back` (R, C) again, at
    weights (2, kinds): the second row where the column's (the row's) flag is set.
    """

def shortest_paths(
    node_count: int,
    sources: NDArray[np.uint32],
    targets: NDArray[np.uint32],
    weights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """All shortest paths over arcs of `weights` seconds (finite, not negative).

    Answers the distance (N, N), infinite where there is no path, and the last arc of the path
    from row to column (-1: none). Ties go to fewer arcs, then to the arc found first in the order
    of Dijkstra's algorithm, which is the same on every run.
    """

def layout_changes(
    layouts: NDArray[np.int8],
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int8],
    NDArray[np.int8],
    NDArray[np.int64],
]:
    """Every pair of the layouts (N, axes) that one collective joins.

    Answers, per pair, the numbers of the layout before and after, the state that changes, the
    state it becomes, and the changing axes as a bit mask. A dimension gains and loses its
    innermost axes only; only a replica becomes a partial sum.
    """

def version() -> str:
    """The solver's version."""
