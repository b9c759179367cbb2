"""Every strategy family on one cost model, as the document `shardwise.compare/1` (Fig. 6).

By replayed times (`replayed.py`), or by sums as TensorOpt compares: there peers that only split are
compared with our frontier of splits; FSDP shards state and recomputes, so there is a second
frontier of ours that may do what the options allow. Peers are strategies of these spaces: none of
their points is below our frontier by more than its certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from shardwise.cost.options import NEVER, Options, Progress, quiet
from shardwise.cost.program import assumed
from shardwise.documents import Comparison
from shardwise.errors import BadInput, Cancelled
from shardwise.graph import Graph
from shardwise.graph.tuning import tuned
from shardwise.hardware import Devices, Hardware, devices_of
from shardwise.peers import data_parallel, flexflow, fsdp, megatron
from shardwise.peers.answer import Answer, proven
from shardwise.peers.document import ALL, OURS, SPLITS, compare_document
from shardwise.peers.evaluate import points_of, with_steps
from shardwise.peers.mixed.comparison import compare_mixed
from shardwise.peers.papers import Peer, papers
from shardwise.peers.replayed import compare_replayed
from shardwise.pipeline.asked import DEFAULT_SCHEDULES
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.pipelines.searched import check_schedules
from shardwise.search.search import Search, Subject, search
from shardwise.sharding.names import named_dimensions


def compare(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    options: Options | None = None,
    progress: Progress | None = None,
    *,
    proposals: int | None = None,
    seed: int = 0,
    stages: Sequence[int] | None = (1,),
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
) -> Comparison:
    """Returns all peers and this system on one cost model.

    Each peer is ranked by its replayed step against our answer; without `overlap` by sums against
    our frontier. A peer without an answer under the options' limits says why. `gpus` is a number of
    devices, or of a profile with groups a bundle such as `v100=2,1080ti=4` (by replayed steps
    only). `proposals` (None: 50,000, of several kinds 5,000) and `seed` are for FlexFlow's random
    search. With `stages` other than 1 (None: all that are possible) there are pipelines of these
    numbers of stages too, ours under some of the `schedules`, by replayed steps on devices of one
    kind only; with schedules that split backward also those of systems which have them. Raises
    `BadInput` for options that a comparison cannot have (pins, method `tofu`, by sums several
    numbers of micro-batches), numbers of stages as `PipelineSearch.fastest`, and what `search`
    raises.
    """
    options, progress = assumed(options, hardware), progress or quiet
    graph = tuned(graph, options.tune)
    devices = devices_of(gpus, hardware)
    question = Question.of(options, "compare", devices, stages=stages, schedules=schedules)
    check(question)
    if proposals is not None and proposals < 1:
        raise BadInput(f"got {proposals}", field="proposals", expected="a whole number from 1")
    subject = Subject.of(graph)
    if question.piped:
        check_schedules(schedules)
    if devices.of_groups:
        return compare_mixed(subject, hardware, devices, options, progress, proposals, seed)
    replayed = partial(compare_replayed, stages=stages, schedules=schedules)
    compared = replayed if options.overlap else _compare_sums
    count = flexflow.PROPOSALS if proposals is None else proposals
    return compared(subject, hardware, devices.gpus, options, progress, count, seed)


def _compare_sums(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
    proposals: int,
    seed: int,
) -> Comparison:
    """Returns the comparison by sums.

    Where the options allow ZeRO or recomputation there are two frontiers of ours, without them
    and with them, and FSDP is compared with the second.
    """
    splits = replace(options, zero=(0,), recompute=NEVER)
    ours = _ours(subject, hardware, gpus, splits, progress)
    answers = list(_answers(ours, progress, proposals, seed))
    rounds = [(SPLITS, answers, _own_answer(ours, SPLITS))]
    if (options.zero, options.recomputation) != ((0,), NEVER):
        sharded = []
        if 3 in options.zero:
            ask = partial(fsdp.fsdp, ours, options.recomputation)
            sharded.append(Peer(fsdp.METHOD, fsdp.TITLE, ask).answer(progress))
        best = _ours(subject, hardware, gpus, options, progress)
        rounds.append((ALL, sharded, _own_answer(best, ALL)))
    return compare_document(ours, rounds)


def _ours(
    subject: Subject, hardware: Hardware, gpus: int, options: Options, progress: Progress
) -> Search:
    (batches,) = options.counts(subject.graph.batch_size)
    ours = search(subject, hardware, gpus, options, progress, micro_batches=batches)
    if ours.solution.status == "cancelled":
        raise Cancelled
    return ours


def _answers(ours: Search, progress: Progress, proposals: int, seed: int) -> Iterator[Answer]:
    """Yields the peers that only split, one after the other, with their replayed steps."""
    problem, options = ours.problem, ours.options
    names = named_dimensions(problem.coarsened)
    batch = data_parallel.data_parallel_answer
    grids = partial(megatron.megatron, problem, options, names=names)
    for peer in (
        Peer(data_parallel.METHOD, data_parallel.TITLE, lambda _: batch(problem)),
        *papers(problem, options, names, proposals, seed),
        Peer(megatron.METHOD, megatron.TITLE, grids),
    ):
        answer = peer.answer(progress)
        points = with_steps(answer.points, ours.own_replayer, by_sum=True)
        yield replace(answer, points=tuple(points))


def _own_answer(ours: Search, space: str) -> Answer:
    """Returns our frontier as an answer like the peers'."""
    solution = ours.solution
    what = {
        SPLITS: ("This system, splits", "the certified frontier of splits"),
        ALL: ("This system", "the certified frontier of all that the options allow"),
    }
    title, found_by = what[space]
    return Answer(
        OURS[space],
        title,
        found_by,
        tuple(with_steps(points_of(ours), ours.own_replayer, by_sum=True)),
        frontier=True,
        epsilon=proven(float(solution.epsilon)),
        seconds=float(solution.seconds),
    )
