"""HeteroG's rows (Tables 1 and 4) on our cost model: its four baselines, Horovod, and our search.

    python -m paper.heterog_runs FOLDER [GPUS [PART [MODEL…]]]

One row after another, each kept in FOLDER as soon as it is done, so that a run that was broken off
goes on where it was; then all rows of FOLDER go to `KEPT`, of which the page is made. A row takes
one to three minutes of a core.

HeteroG has neither ZeRO, recomputation nor micro-batches, so ours has none here either: what it
chooses is who computes which share of an operator and how a gradient is summed, as in HeteroG, and
besides splits of other dimensions than samples. Adam, float32; each device may use its memory
divided by the default headroom of 1.1. Where nothing fits so, the `wider` search may use ZeRO and
recomputation. A search ends after `LIMIT_S` seconds of one core, whatever else the machine runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from paper.heterog_models import LONGER, OPTIMIZER, ROWS, Row, heterog_graph
from paper.heterog_published import CNNS
from shardwise.cost.group_work import GroupWork
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.mixed.sums import ServerSum
from shardwise.cost.options import NEVER, ZERO_STAGES, Options, quiet
from shardwise.cost.space import EVEN, NONE
from shardwise.hardware import Devices, Hardware, JointLinks, RingLinks, load_hardware
from shardwise.peers.evaluate import Point
from shardwise.peers.mixed.data_parallel import HOROVOD, baselines, by_peaks, horovod
from shardwise.peers.mixed.space import Space
from shardwise.search.chosen import Chosen, fastest, lowest_peak, time_gap
from shardwise.search.fitting import search_fitting
from shardwise.search.group_alone import fastest_alone
from shardwise.search.mixed.incumbents import Wish, strategies
from shardwise.search.mixed.search import MixedDraft, MixedSearch
from shardwise.search.replayed import SEVERAL_KINDS_S
from shardwise.search.search import Subject
from shardwise.search.watch import Watch
from shardwise.sharding.coarsen import Member
from shardwise.sharding.names import sample_variables

KEPT = Path(__file__).parent / "heterog"
"""One file of rows for each cluster."""

CLUSTERS = {8: "v100=2,1080ti=4,p100=2", 12: "v100=4,1080ti=4,p100=4"}
"""What a job takes of `heterog-8` and `heterog-12` (§6.1)."""

LIMIT_S = 30.0
"""CPU seconds of a search over all devices; each group alone has its usual share of a minute."""

OPTIONS = Options(
    optimizer=OPTIMIZER, zero=(0,), recompute=NEVER, micro_batches=(1,), time_limit_s=LIMIT_S
)
WIDER = replace(OPTIONS, zero=ZERO_STAGES, recompute=None)

PARTS = ("baselines", "ours", "wider", "experiments", "local")
CARD, LOCAL = "paths at the card's rate", "statistics of each device's own samples"
"""What experiments change, one thing at a time, for the reasons."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A model with a batch on one of the clusters; `seq` replaces the tokens of a sequence."""

    row: Row
    gpus: int
    seq: int | None = None
    hardware: Hardware = field(kw_only=True)

    @property
    def batch(self) -> int:
        return self.row.batch_8 if self.gpus == 8 else self.row.batch_12

    @property
    def key(self) -> str:
        """What the row is called in files."""
        return f"{self.row.model}-{self.batch}" + (f"-seq{self.seq}" if self.seq else "")

    @cached_property
    def bundle(self) -> Devices:
        return Devices.parse(CLUSTERS[self.gpus], self.hardware)

    @cached_property
    def subject(self) -> Subject:
        return Subject.of(heterog_graph(self.row.model, self.batch, seq=self.seq))

    def space(self, links: type[JointLinks] = JointLinks) -> Space:
        """The space of HeteroG's baselines."""
        draft = MixedDraft.of(self.subject, self.hardware, self.bundle, OPTIONS, quiet, 1, links)
        groups = replace(draft.groups, keep_beaten=True)
        return Space.of(replace(draft, groups=groups).joined(quiet))


def questions(gpus: int) -> Iterator[Question]:
    """Yields the rows of a table, then those with sequences of which data parallelism runs out of
    memory where the paper's does."""
    hardware = load_hardware(f"heterog-{gpus}")
    for row in ROWS:
        yield Question(row, gpus, hardware=hardware)
    for row in ROWS:
        if row.model in LONGER:
            yield Question(row, gpus, LONGER[row.model], hardware=hardware)


def baseline_figures(question: Question) -> Figures:
    """Returns what HeteroG's baselines and Horovod take, by method.

    Besides one server for everything, which `compare` has, PS has HeteroG's: each parameter is
    summed where that is over first (§4.1), so that servers share the work.
    """
    space = question.space()
    figures = {}
    for peer in baselines([space]):
        answer = peer.ask(quiet)
        points = {point.label.partition(":")[0]: point for point in answer.points}
        if peer.method.endswith("-ps"):
            points["spread"] = spread(space, even=peer.method == "ev-ps")
        figures[peer.method] = _of_points(points, space)
    ring = horovod([space], lambda _: question.space(RingLinks))
    figures[ring.method] = _of_point(ring.points[0], space.limit_bytes)
    return figures


def spread(space: Space, *, even: bool) -> Point:
    """Returns data parallelism with the gradients of each group at the server that keeps the
    busiest place's links the least busy, larger gradients first."""
    problem = space.problem
    mesh = problem.context.mesh
    servers = [n for n, one in enumerate(mesh.gradient_sums) if isinstance(one, ServerSum)]
    proportion = EVEN if even else by_peaks(problem)
    wished = [Wish(proportion, server, stage=0, recompute=False) for server in servers]
    rows = strategies(problem, wished)
    groups = range(rows.shape[1])
    # Seconds of communication at each place, (groups, servers, places).
    taken = np.array(
        [[p.costs[g].communication_s[rows[:, g]] for p in problem.places] for g in groups]
    ).transpose(0, 2, 1)
    busy, chosen = np.zeros(len(problem.places)), rows[0].copy()
    for g in np.argsort(-taken.max(axis=(1, 2)), kind="stable"):
        server = int(np.argmin((busy + taken[g]).max(axis=1)))
        busy, chosen[g] = busy + taken[g, server], rows[server, g]
    return space.points(chosen[None])[0]


def _of_points(points: dict[str, Point], space: Space) -> Figures:
    figures = _of_point(space.better(list(points.values())), space.limit_bytes)
    if len(points) > 1:
        figures["servers_s"] = {n: _rounded(point.ranking_s) for n, point in points.items()}
    return figures


def _of_point(point: Point, limit_bytes: float) -> Figures:
    return {
        "time_s": _rounded(point.ranking_s),
        "peak_of_limit": _rounded(point.ranking_bytes / limit_bytes),
        "label": point.label,
        "places": {
            place.name: [
                _rounded(place.compute_s),
                _rounded(place.communication_s),
                _rounded(place.peak_bytes / 2**30),
            ]
            for place in point.places
        },
    }


@contextmanager
def cpu_time() -> Iterator[None]:
    """Lets the limits of searches count CPU seconds of this process."""
    with (
        patch("shardwise.search.watch.monotonic", time.process_time),
        patch("shardwise.search.game.monotonic", time.process_time),
    ):
        yield


def our_figures(question: Question, options: Options = OPTIONS) -> tuple[Figures, Chosen | None]:
    """Returns what our search answers, and the strategy over all devices."""
    subject, hardware, bundle = question.subject, question.hardware, question.bundle
    started = time.process_time()
    with cpu_time():
        searches = search_fitting(subject, hardware, bundle, options)
        alone = fastest_alone(subject, hardware, bundle, options, Watch(quiet, SEVERAL_KINDS_S))
    together = fastest(searches)
    figures: Figures = {
        "cpu_seconds": round(time.process_time() - started, 1),
        "alone": None if alone is None else [alone.name, _rounded(alone.best.ranking_s)],
    }
    if together is None:
        least = lowest_peak(searches) if any(len(s.time_s) for s in searches) else None
        figures["least_peak_of_limit"] = (
            None if least is None else _rounded(least.peak_bytes / least.search.limit_bytes)
        )
        return figures, None
    search = together.search
    assert isinstance(search, MixedSearch)
    point = Space.of(search).point(
        search.solution.choices[together.point], search.solution.edge_choices[together.point]
    )
    figures |= _of_point(point, search.limit_bytes)
    figures["gap"] = _rounded(time_gap(searches, together) or 0.0)
    figures["choices"] = choices(search.problem, point.choices)
    return figures, together


def choices(problem: MixedProblem, rows: np.ndarray[Any, Any]) -> list[Figures]:
    """Returns how groups of operators run, those with most operators first.

    `who` is one block of a group (HeteroG's MP), some blocks, all of them evenly (EV) or unevenly
    (CP), or `whole` where every block computes all; `sum` is how gradients are summed (PS or AR,
    "" for groups without parameters on more than one block); `split` says what else than samples
    is split. Operators are those of forward.
    """
    totals: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    coarsened = problem.coarsened
    samples = sample_variables(coarsened)
    for group, cost, row, own in zip(
        coarsened.groups, problem.costs, rows.tolist(), samples, strict=True
    ):
        who, several = _who(problem, int(cost.proportion[row]), cost.assignment[row])
        axes = {int(v) for v in cost.assignment[row] if v != NONE}
        split = "samples" if axes <= set(own) else "others"
        size = _parameter_bytes(problem, group.members)
        summed = ""
        if size and several:
            kind = problem.context.mesh.gradient_sums[int(cost.gradient_sum[row])]
            summed = "PS" if isinstance(kind, ServerSum) else "AR"
        total = totals[who, summed, split]
        total[0] += len(group.members)
        total[1] += size
    ordered = sorted(totals.items(), key=lambda one: -one[1][0])
    return [
        {"who": who, "sum": summed, "split": split, "operators": n, "parameter_bytes": size}
        for (who, summed, split), (n, size) in ordered
    ]


def _parameter_bytes(problem: MixedProblem, members: Sequence[Member]) -> int:
    tensors = problem.context.graph.tensors
    names = {name for member in members for name in member.operator.inputs}
    return sum(tensors[n].size_bytes for n in names if tensors[n].role == "parameter")


def _who(
    problem: MixedProblem, proportion: int, assignment: np.ndarray[Any, Any]
) -> tuple[str, bool]:
    """Returns who computes a group, and whether these are several blocks."""
    weights = problem.cluster.proportions[proportion]
    groups = problem.cluster.blocks.groups
    if len(weights.support) == 1:
        return f"one block of {groups[weights.support[0]].name}", False
    if not weights.is_whole:
        names = dict.fromkeys(groups[block].name for block in weights.support)
        return f"some: {', '.join(names)}", True
    if assignment[0] == NONE:
        return "whole", True
    return ("EV" if proportion == EVEN or weights.is_even else "CP"), True


def experiment_figures(question: Question) -> Figures:
    """Returns the baselines' seconds in every experiment."""
    card = replace(question, hardware=replace(question.hardware, paths=()))
    figures = {CARD: _seconds(card)}
    with without_statistics():
        figures[LOCAL] = _seconds(question)
    return figures


def _seconds(question: Question) -> Figures:
    figures = baseline_figures(question)
    return {method: one["time_s"] for method, one in figures.items() if method != HOROVOD}


@contextmanager
def without_statistics() -> Iterator[None]:
    """Lets normalisations have the statistics of each device's own samples."""
    with patch.object(GroupWork, "_statistics", lambda *_: None):
        yield


def run(question: Question, folder: Path, part: str) -> None:
    """Keeps a part of a row's figures in a folder: `baselines`, or `ours` with its strategy."""
    path = _path(question, folder, part)
    if path.exists() or not _asked(question, folder, part):
        return
    if part in ("ours", "wider"):
        figures, chosen = our_figures(question, OPTIONS if part == "ours" else WIDER)
        if chosen is not None:
            solution, at = chosen.search.solution, chosen.point
            edges = solution.edge_choices[at]
            np.savez(path.with_suffix(".npz"), choices=solution.choices[at], edge_choices=edges)
        said: object = (figures.get("time_s"), figures["alone"], figures["cpu_seconds"])
    elif part == "baselines":
        figures = baseline_figures(question)
        said = {method: one["time_s"] for method, one in figures.items()}
    elif part == "experiments":
        said = figures = experiment_figures(question)
    else:
        with without_statistics():
            figures, _ = our_figures(question)
        said = figures.get("time_s")
    path.write_text(json.dumps(figures) + "\n")
    print(question.gpus, question.key, said, flush=True)


def _asked(question: Question, folder: Path, part: str) -> bool:
    if part == "wider":
        ours = _path(question, folder, "ours")
        if not ours.exists():
            return False
        figures = json.loads(ours.read_text())
        return "time_s" not in figures and figures["alone"] is None
    if part == "ours":
        return question.seq is None
    if part == "baselines":
        return True
    of_models = question.row.fits and question.seq is None
    return of_models and (part == "experiments" or question.row.model in CNNS)


def _path(question: Question, folder: Path, part: str) -> Path:
    return folder / f"{question.gpus}-{question.key}-{part}.json"


def keep(folder: Path) -> None:
    """Puts the rows of a folder where the page is made from."""
    KEPT.mkdir(exist_ok=True)
    for gpus in CLUSTERS:
        rows = [row for question in questions(gpus) if (row := _row(question, folder))]
        if rows:
            lines = ",\n".join(json.dumps(row) for row in rows)
            (KEPT / f"gpus{gpus}.json").write_text(f"[\n{lines}\n]\n")


def _row(question: Question, folder: Path) -> Figures | None:
    paths = {part: _path(question, folder, part) for part in PARTS}
    figures = {part: json.loads(path.read_text()) for part, path in paths.items() if path.exists()}
    if not figures:
        return None
    row = question.row
    return {"model": row.model, "batch": question.batch, "seq": question.seq, **figures}


def kept(gpus: int) -> list[Figures]:
    """Returns the rows that were kept for a cluster."""
    rows: list[Figures] = json.loads((KEPT / f"gpus{gpus}.json").read_text())
    return rows


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    asked = [int(arguments[1])] if len(arguments) > 1 else list(CLUSTERS)
    parts = arguments[2:3] or PARTS
    models = arguments[3:]
    for part in parts:
        for gpus in asked:
            for question in questions(gpus):
                if not models or question.row.model in models:
                    run(question, folder, part)
    keep(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
