"""Every system by replayed steps: their strategies against our answer (`shardwise compare`).

What is compared is how long a step takes when it is run, communication overlapped, of those whose
peak fits:

    ours            the answer of the search by replayed time over all numbers of micro-batches
    practitioners   each strategy with its best number of micro-batches (`practitioners.py`)
    recipes         what trainers' projects publish for the model (`recipes.py`)
    pipelines       what practitioners run in stages, and ours, if asked for (`pipelines.py`)
    papers          what each system finds by its own measure, a sum, with the least number of
                    micro-batches with which that fits

Systems that only split are left out where the options forbid a strategy without ZeRO or without
recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from time import monotonic

from shardwise.answers.label import Labels
from shardwise.cost.assemble import SearchProblem, assemble
from shardwise.cost.options import ALWAYS, NEVER, Options, Progress, go_on
from shardwise.documents import Comparison
from shardwise.errors import Cancelled, SolverError
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware
from shardwise.peers.alpa import alpa_answer
from shardwise.peers.answer import Answer, pareto, proven
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.document import ALL, OUR_PIPELINES, OURS, SPLITS, replayed_document
from shardwise.peers.evaluate import Point, Step, point_of, with_steps
from shardwise.peers.methods import MEGATRON, METHODS, STAGE
from shardwise.peers.papers import Peer, papers
from shardwise.peers.pipelines import piped_point, pipeline_answers
from shardwise.peers.practices import is_offered
from shardwise.peers.practitioners import Practised, best_of_counts
from shardwise.peers.recipes import recipe_answers
from shardwise.peers.restrict import solve
from shardwise.peers.unsharded import unsharded_text
from shardwise.pipeline.asked import DEFAULT_SCHEDULES
from shardwise.replay.replay import Replayer
from shardwise.search.chosen import Chosen, fastest, lowest_peak, time_gap
from shardwise.search.fitting import search_fitting
from shardwise.search.pipelines.search import PipelineSearch
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.uniform import UniformModel
from shardwise.search.search import Search, Subject
from shardwise.sharding.names import named_dimensions

SUMS = "Our splits by sums"


def compare_replayed(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
    proposals: int,
    seed: int,
    stages: Sequence[int] | None = (1,),
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
) -> Comparison:
    """Returns the comparison by replayed steps; raises as `compare`."""
    ours = search_fitting(subject, hardware, Devices.alike(gpus), options, progress)
    if any(search.solution.status == "cancelled" for search in ours):
        raise Cancelled
    plain = options.zero == (0,) and options.recomputation == NEVER
    space = SPLITS if plain else ALL
    replayers = _replayers(ours, progress)
    limit = ours[0].limit_bytes
    answers = [(space, answer) for answer in _practitioners(ours, replayers, progress)]
    recipes = recipe_answers(subject.graph, hardware, gpus, options, replayers, limit, progress)
    answers += [(space, answer) for answer in recipes]
    if 0 in options.zero and options.recomputation != ALWAYS:
        papers = _Papers(ours, progress, proposals, seed)
        answers += [(SPLITS, answer) for answer in papers.answers()]
    if stages is None or set(stages) - {1}:
        # With the programs of its steps, which take longer to write than to run.
        staged = StagedSubject.of(subject.graph)
        model = UniformModel(subject.graph, hardware, gpus, staged)
        peers = pipeline_answers(model, options, stages, schedules, progress)
        answers += [(space, answer) for answer in peers]
        graph = subject.graph
        answers.append(
            (space, alpa_answer(graph, hardware, gpus, options, stages, progress, staged))
        )
        own = _own_pipelines(staged, graph, hardware, gpus, options, progress, stages, schedules)
        answers.append((space, own))
    return replayed_document(ours, [*answers, (space, _own_answer(ours))])


def _replayers(ours: Sequence[Search], progress: Progress) -> list[Replayer]:
    """Returns the replayer of every number of micro-batches."""
    replayers = []
    for place, one in enumerate(ours):
        go_on(progress, STAGE, place / len(ours))
        replayers.append(replayer_of_whole(one, progress))
    return replayers


def _practitioners(
    ours: Sequence[Search], replayers: Sequence[Replayer], progress: Progress
) -> Iterator[Answer]:
    """Yields every method of practitioners that the options allow."""
    limit = ours[0].limit_bytes
    for methods in ([name for name in METHODS if name != MEGATRON], [MEGATRON]):
        started = monotonic()
        best: list[Practised] = []
        reason = "a micro-batch has fewer samples than there are devices"
        try:
            best = best_of_counts(replayers, limit, progress, methods=methods)
        except SolverError as error:
            reason = str(error)
        seconds = monotonic() - started
        for name in methods:
            practised = [one for one in best if one.practice.method == name]
            if practised or is_offered(name, ours[0].problem):
                yield replace(_method(name, practised, reason), seconds=seconds)


def replayer_of_whole(search: Search, progress: Progress) -> Replayer:
    """Returns the replayer of a search's whole problem, which a hopeless count has not built."""
    if len(search.time_s):
        return search.own_replayer
    context = search.problem.context
    problem = assemble(
        context.patterns,
        search.hardware,
        search.mesh,
        search.options,
        progress,
        context.micro_batches,
    )
    return Replayer(problem, search.options.step, search.subject.kits)


def _method(name: str, practised: Sequence[Practised], reason: str) -> Answer:
    method = METHODS[name]
    if not practised:
        return Answer(name, method.title, "", reason=reason)
    points = [
        replace(
            point_of(one.problem, one.practice.choices, one.practice.edge_choices),
            label=one.practice.label,
            step=one.step,
        )
        for one in practised
    ]
    plain = name == "data-parallel"
    notes = data_parallel_rows(practised[0].problem).notes() if plain else ()
    notes += tuple(dict.fromkeys(filter(None, map(_unsharded, practised))))
    found_by = f"{method.found_by}; each with its best number of micro-batches"
    return Answer(name, method.title, found_by, tuple(points), notes=notes)


def _unsharded(one: Practised) -> str | None:
    """Returns what a strategy leaves whole although its name says shards."""
    practice = one.practice
    return unsharded_text(one.problem, practice.choices, practice.parallelism.shards)


@dataclass(frozen=True)
class _Space:
    """The splits alone, with one number of micro-batches."""

    problem: SearchProblem
    replayer: Replayer
    peers: tuple[Peer, ...]


class _Papers:
    """The systems of papers, which search splits by sums of their own, and we by sums."""

    def __init__(
        self, ours: Sequence[Search], progress: Progress, proposals: int, seed: int
    ) -> None:
        self._first = ours[0]
        self._counts = sorted(search.micro_batches for search in ours)
        self._options = replace(self._first.options, zero=(0,), recompute=NEVER, overlap=False)
        self._progress = progress
        self._proposals, self._seed = proposals, seed
        self._space = cache(self._built)

    def answers(self) -> Iterator[Answer]:
        """Yields each system's strategies, replayed."""
        for place in range(len(self._space(self._counts[0]).peers)):
            yield self._fitting(place)

    def _built(self, micro_batches: int) -> _Space:
        first, options = self._first, self._options
        variant = first.subject.variant(options, micro_batches)
        problem = assemble(
            variant, first.hardware, first.mesh, options, self._progress, micro_batches
        )
        names = named_dimensions(problem.coarsened)
        sums = Peer(OURS[SPLITS], SUMS, partial(_splits_by_sums, problem, options))
        return _Space(
            problem,
            Replayer(problem, options.step, first.subject.kits),
            (*papers(problem, options, names, self._proposals, self._seed), sums),
        )

    def _fitting(self, place: int) -> Answer:
        """Returns the answer with the least number of micro-batches with which a strategy fits, or
        where none does with the number of the least peak."""
        answers: list[Answer] = []
        for count in self._counts:
            space = self._space(count)
            answer = space.peers[place].answer(self._progress)
            answers.append(
                replace(answer, points=_replayed(answer, space, self._first.limit_bytes))
            )
            if _least_peak(answers[-1]) <= self._first.limit_bytes:
                break
        seconds = sum(answer.seconds for answer in answers)
        return replace(min(answers, key=_least_peak), seconds=seconds)


def _splits_by_sums(problem: SearchProblem, options: Options, progress: Progress) -> Answer:
    solved = solve(problem.sums.problem, options, progress, epsilon=options.epsilon)
    choices = problem.sums.whole(solved.choices)
    return Answer(
        OURS[SPLITS],
        SUMS,
        "our certified frontier of splits by sums, as TensorOpt has it",
        tuple(
            point_of(problem, of_groups, of_edges)
            for of_groups, of_edges in zip(choices, solved.edge_choices, strict=True)
        ),
        frontier=True,
        epsilon=proven(float(solved.epsilon)),
    )


def _replayed(answer: Answer, space: _Space, limit_bytes: float) -> tuple[Point, ...]:
    """Returns the points of an answer with their steps; of a frontier those that none beats."""
    points = with_steps(answer.points, space.replayer)
    if answer.frontier:
        points = pareto(points)
    labels = Labels(space.problem, None, space.replayer, limit_bytes)
    return tuple(_labelled(point, labels) for point in points)


def _labelled(point: Point, labels: Labels) -> Point:
    if point.label:
        return point
    step = None if point.step is None else (point.step.time_s, point.step.peak_bytes)
    return replace(point, label=labels.of(point.choices, point.edge_choices, step))


def _least_peak(answer: Answer) -> float:
    return min((point.ranking_bytes for point in answer.points), default=inf)


def _own_answer(ours: Sequence[Search]) -> Answer:
    """Returns our answer: the fastest strategy that fits, or where none does the smallest."""
    title = "This system"
    if not any(len(search.time_s) for search in ours):
        return Answer(OURS[ALL], title, "", reason="no strategy was found within the limits")
    best = fastest(ours)
    return Answer(
        OURS[ALL],
        title,
        "the search by replayed time over all that the options allow",
        (_own_point(best or lowest_peak(ours)),),
        epsilon=None if best is None else time_gap(ours, best),
        seconds=sum(float(search.solution.seconds) for search in ours),
    )


def _own_pipelines(
    staged: StagedSubject,
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
    stages: Sequence[int] | None,
    schedules: Sequence[str],
) -> Answer:
    """Returns our pipelines: the fastest that fits of these numbers of stages (None: all), under
    some of the schedules."""
    started = monotonic()
    search = PipelineSearch(
        graph, hardware, Devices.alike(gpus), options, progress, schedules, staged
    )
    asked = search.counts() if stages is None else sorted(set(stages) - {1})
    fastest = search.fastest(asked)
    best, title = fastest.pipeline, "This system, pipelines"
    if best is None:
        reason = f"no pipeline of {' or '.join(map(str, asked)) or 'any number of'} stages fits"
        return Answer(OUR_PIPELINES, title, "", reason=reason)
    each = f"·vpp{best.stages_per_rank}" if best.stages_per_rank > 1 else ""
    label = f"pp{best.ranks}{each}·{best.schedule}"
    return Answer(
        OUR_PIPELINES,
        title,
        "the search of cuts, schedules, micro-batches and a strategy for each stage",
        (piped_point(best, label),),
        epsilon=best.step_s / fastest.least_s - 1.0 if fastest.least_s > 0 else None,
        seconds=monotonic() - started,
    )


def _own_point(chosen: Chosen) -> Point:
    search, at = chosen.search, chosen.point
    solution = search.solution
    point = point_of(search.problem, solution.choices[at], solution.edge_choices[at])
    exposed_s = float(search.replayed.exposed_s[at])
    step = Step(search.micro_batches, chosen.peak_bytes, chosen.replayed_time_s, exposed_s)
    labels = Labels(search.problem, None, search.replayer, search.limit_bytes)
    return _labelled(replace(point, step=step), labels)
