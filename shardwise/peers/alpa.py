"""Alpa's pipelines (Zheng et al. 2022): stages by a programme over sums, each solved exactly.

Alpa cuts a model into stages, finds the best splits of each by an integer programme, and takes the
cuts of the least

    T = Σ t_s + (A - 1) max t_s

over A micro-batches under 1F1B (§5.1, Eq. 2), with the micro-batches in flight counted in a stage's
memory (§5.3). Here t_s is the sum of the best strategy of a stage within its memory, found by the
solver that our own stages have; hops are free and nothing overlaps, as there. What the answer takes
is then replayed and simulated as every pipeline. Stages all have as many devices, where Alpa may
give them meshes of different sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from shardwise.cost.options import Options, Progress, go_on
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware
from shardwise.peers.answer import Answer
from shardwise.peers.methods import STAGE
from shardwise.peers.pipelines import piped_point
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.question import Guided, PipelineQuery
from shardwise.search.pipelines.search import NEAR_LIMIT, PipelineSearch
from shardwise.search.pipelines.searched import Run
from shardwise.search.pipelines.staged import Staged
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.sharding.layout import Floats

METHOD, TITLE = "alpa", "Alpa-like"
FOUND_BY = (
    "unequal stages under 1F1B, cut where the sum of their times and (micro-batches - 1) times the "
    "longest is least, the splits of each solved exactly; every number of stages with its best "
    "micro-batches"
)
SCHEDULE = "1f1b"


@dataclass(frozen=True)
class FormulaRun(Run):
    """1F1B by Alpa's formula: the longest stage repeats for all micro-batches but one, wherever it
    is."""

    def repeats(self, hidden: float) -> list[float]:
        return [float(self.micro_batches - 1)] * self.stages


class FormulaStaged(Staged):
    """Cuts are those of the formula: none is moved because the simulated schedule is faster."""

    def _moved(
        self, guided: Guided, run: Run, within: Floats, bounds: tuple[int, ...]
    ) -> tuple[int, ...]:
        return bounds


def alpa_answer(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    options: Options,
    stages: Sequence[int] | None,
    progress: Progress,
    staged: StagedSubject | None = None,
) -> Answer:
    """Returns the best pipeline of each number of stages (None: all that are possible).

    `staged` is the graph's, if the caller has it already. Raises `Infeasible` as `PipelineSearch`.
    """
    started = monotonic()
    search = PipelineSearch(
        graph, hardware, Devices.alike(gpus), options, progress, (SCHEDULE,), staged
    )
    points, notes = [], []
    for count in search.counts() if stages is None else sorted(set(stages) - {1}):
        try:
            best = _best(search.questions([count]), progress)
        except BadInput as error:
            notes.append(error.problem)
            continue
        if best is None:
            notes.append(f"no pipeline of {count} stages fits")
        else:
            points.append(piped_point(best, f"pp{best.stages}"))
    return Answer(
        METHOD,
        TITLE,
        FOUND_BY,
        tuple(points),
        reason=None if points else "; ".join(notes) or "no number of stages is possible",
        notes=tuple(notes) if points else (),
        seconds=monotonic() - started,
    )


def _best(questions: Iterator[PipelineQuery], progress: Progress) -> Pipeline | None:
    """Returns the fastest pipeline by its replayed step over all numbers of micro-batches."""
    best: Pipeline | None = None
    for question in sorted(questions, key=lambda one: one.least_s):
        go_on(progress, STAGE, 0.0)
        if best is not None and question.least_s >= best.step_s:
            break
        staged = FormulaStaged(question, progress, NEAR_LIMIT)
        for guided in staged.guided:
            free = {kind: [[0.0] * len(into) for into in of] for kind, of in guided.hops_s.items()}
            for run in question.runs:
                own = FormulaRun(run.of, run.ranks, run.micro_batches)
                made = staged.fastest(replace(guided, hops_s=free), own, staged.limit_bytes)
                if made is not None and (best is None or made.rank < best.rank):
                    best = made
    return best
