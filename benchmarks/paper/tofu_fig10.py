"""Tofu Fig. 10: ways to choose a partition, on 8 K80 in one machine.

All by Tofu's own measure (§5): every tensor lies in shares, what an operator needs beyond its share
is fetched, sums are added up where they are stored, and bytes are what counts. Time is the
cost model's computation on an eighth of the work, and the bytes that a GPU moves over PCIe.

    Tofu            steps of two, each with the fewest bytes
    ICML18          the same without splitting what is summed (output reduction)
    EqualChop       one step of eight: every tensor is cut along one dimension
    Spartan         one step of eight; the largest tensor is laid first, then what touches it, …
    AllRow-Greedy   one step of eight; every tensor is cut along its first dimension
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from paper import draw
from paper.models import subject
from paper.result import Claim, Result, Table
from paper.setting import PAPER
from shardwise import _core
from shardwise.cost.options import TOFU
from shardwise.hardware import load_hardware
from shardwise.search.search import Search, search
from shardwise.search.tofu.recursion import whole_graph
from shardwise.search.tofu.step import Step, Workers, divide, partition

MODELS = ("rnn-4-8k", "wresnet-152-10")
GPUS = 8


def solve(problem: _core.Problem) -> _core.Solution:
    """The plan with the fewest bytes."""
    return _core.solve(problem, method="elimination")


def go_on() -> None:
    """Never cancels."""


def recursive(workers: Workers) -> float:
    """Bytes of Tofu's recursion in three steps of two."""
    total = 0.0
    for _ in range(3):
        plan = partition(workers, 2, solve, go_on)
        total += plan.total_bytes
        workers = divide(workers, plan)
    return total


def without_output_reduction(workers: Workers) -> float:
    """The same where no group may be split along what its heaviest operator sums over."""
    return recursive(replace(workers, groups=[_unsummed(g) for g in workers.groups]))


def _unsummed(group: Any) -> Any:
    summed = {v for uses in group.uses.values() for use in uses if use.made for v in use.partial}
    return replace(group, legal=lambda v, parts: v not in summed and group.legal(v, parts))


def equal_chop(workers: Workers) -> float:
    """Bytes of the best plan with one dimension a tensor."""
    return partition(workers, GPUS, solve, go_on).total_bytes


def all_row_greedy(workers: Workers) -> float:
    """Bytes when every tensor lies along its first dimension that can be cut."""
    step = Step(workers, GPUS, go_on)
    rows = {name: (_first_row(pairs), _first_row(pairs)) for name, pairs in step.pairs.items()}
    total = 0.0
    for g in range(len(workers.groups)):
        cost = step.costs_of(g)
        whole = cost.inner.copy()
        for name, moved in zip(step.shared(g), cost.edges, strict=True):
            pairs = step.pairs[name]
            whole += moved[:, min(range(len(pairs)), key=lambda i: _rank(pairs[i], rows[name]))]
        total += float(whole.min())
    return total


def _first_row(pairs: list[tuple[int, int]]) -> int:
    return min(forward for forward, _ in pairs)


def _rank(pair: tuple[int, int], wanted: tuple[int, int]) -> tuple[bool, bool]:
    return (pair[0] != wanted[0], pair[1] != wanted[1])


def spartan(workers: Workers) -> float:
    """Bytes when tensors are laid largest first, with what touches them, as is best at the time."""
    step = Step(workers, GPUS, go_on)
    group_choice: dict[int, int] = {}
    pair_choice: dict[str, int] = {}
    tables = {
        (g, name): moved
        for g in range(len(workers.groups))
        for name, moved in zip(step.shared(g), step.costs_of(g).edges, strict=True)
    }
    shared = sorted(step.pairs, key=lambda n: -workers.stored[n].tensor.size_bytes)
    touched: dict[int, list[str]] = {g: step.shared(g) for g in range(len(workers.groups))}

    def lay(name: str) -> None:
        if name in pair_choice:
            return
        around = workers.stored[name].groups
        total = np.zeros(len(step.pairs[name]))
        for g in around:
            moved = tables[g, name]
            fixed = group_choice.get(g)
            total += moved.min(axis=0) if fixed is None else moved[fixed]
        pair_choice[name] = int(total.argmin())

    def choose(g: int) -> None:
        if g in group_choice:
            return
        total = step.costs_of(g).inner.copy()
        for name in touched[g]:
            moved = tables[g, name]
            fixed = pair_choice.get(name)
            total += moved.min(axis=1) if fixed is None else moved[:, fixed]
        group_choice[g] = int(total.argmin())

    everything = sorted(_laid(workers), key=lambda item: -item[0])
    for _, name, groups in everything:
        if name in step.pairs:
            lay(name)
        for g in groups:
            choose(g)
    for name in shared:
        lay(name)
    inner = sum(float(step.costs_of(g).inner[group_choice[g]]) for g in touched)
    return inner + sum(
        float(tables[g, name][group_choice[g], pair_choice[name]]) for g, name in tables
    )


def _laid(workers: Workers) -> list[tuple[int, str, tuple[int, ...]]]:
    """Every tensor with its bytes and the groups that touch it."""
    return [
        (stored.tensor.size_bytes, name, stored.groups) for name, stored in workers.stored.items()
    ]


WAYS: dict[str, Callable[[Workers], float]] = {
    "Tofu": recursive,
    "ICML18": without_output_reduction,
    "EqualChop": equal_chop,
    "Spartan": spartan,
    "AllRow-Greedy": all_row_greedy,
}


def seconds_per_byte() -> float:
    """Seconds for one byte that all GPUs together move: each moves its share over PCIe."""
    level = load_hardware("p2.8xlarge").levels[0]
    return 1 / (GPUS * level.bandwidth_bytes_per_s * level.efficiency)


def measured(model: str) -> dict[str, Any]:
    """Computation in seconds, and the bytes that each way moves."""
    result = splits(model)
    return {
        "compute_s": result.compute_s(0),
        "bytes": {name: way(whole_graph(result.problem)) for name, way in WAYS.items()},
    }


def splits(model: str) -> Search:
    """Returns Tofu's strategy; its computation, an eighth of the work, is the same in all ways."""
    options = replace(PAPER, method=TOFU, pins=())
    return search(subject(model), load_hardware("p2.8xlarge"), GPUS, options)


def make() -> Result:
    result = Result("tofu_fig10", "Tofu Fig. 10: ways to choose a partition (8 K80)")
    figures = {model: measured(model) for model in MODELS}
    times = {
        model: {
            name: figure["compute_s"] + moved * seconds_per_byte()
            for name, moved in figure["bytes"].items()
        }
        for model, figure in figures.items()
    }
    rows = [
        (
            name,
            *(
                f"{times[m][name]:.3g} s ({figures[m]['bytes'][name] / 1e9:.1f} GB, "
                f"{times[m][name] / times[m]['Tofu'] - 1:+.0%})"
                for m in MODELS
            ),
        )
        for name in WAYS
    ]
    result.tables.append(Table(("", *MODELS), rows))
    result.pictures.append(draw.save("tofu-fig10", 2, lambda axes: _draw(axes, figures, times)))
    for model in MODELS:
        result.claims += claims(model, times[model])
    result.data = {m: {**figures[m], "time_s": times[m]} for m in MODELS}
    return result


def claims(model: str, times: dict[str, float]) -> list[Claim]:
    """The ranking of §7.3."""
    order = sorted(times, key=lambda name: times[name])
    said = ", ".join(f"{name} {times[name] / times['Tofu'] - 1:+.1%}" for name in order)
    near = times["Tofu"] * 1.0001
    between = all(near < times[n] < times["AllRow-Greedy"] for n in ("Spartan", "EqualChop"))
    general = [
        Claim(f"{model}: Tofu is the fastest", times["Tofu"] <= min(times.values()) * 1.0001, said),
        Claim(f"{model}: Spartan and EqualChop lie between Tofu and AllRow-Greedy", between, said),
    ]
    if model == "wresnet-152-10":
        last = set(order[-2:]) == {"AllRow-Greedy", "ICML18"}
        statement = "AllRow-Greedy and ICML18 fetch too much (out of memory)"
        return [*general, Claim(f"{model}: {statement}", last, f"they move the most bytes; {said}")]
    slower = times["ICML18"] / times["Tofu"] - 1
    return [
        *general,
        Claim(f"{model}: AllRow-Greedy is the slowest", order[-1] == "AllRow-Greedy", said),
        Claim(f"{model}: ICML18 is 7 % slower than Tofu", 0.02 < slower < 0.15, f"{slower:+.1%}"),
    ]


def _draw(axes: Any, figures: dict[str, Any], times: dict[str, dict[str, float]]) -> None:
    for panel, (model, figure) in zip(axes, figures.items(), strict=True):
        names = list(reversed(WAYS))
        total = [times[model][name] for name in names]
        panel.bar(names, total, color=draw.MESH, label="communication")
        panel.bar(names, [figure["compute_s"]] * len(names), color=draw.OURS, label="computation")
        panel.set_title(model, fontsize=10)
        panel.set_ylim(0, 1.25 * max(total))
        panel.tick_params(axis="x", rotation=30, labelsize=8)
    axes[0].set_ylabel("iteration, s")
    axes[0].legend(frameon=False, fontsize=8, ncols=2)
