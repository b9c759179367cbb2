"""Every strategy family on one cost model, as the document `shardwise.compare/1` (Fig. 6).

Peers that only split are compared with our frontier of splits; FSDP shards state and recomputes,
so there is a second frontier of ours that may do what the options allow. Peers are strategies of
these spaces: none of their points is below our frontier by more than its certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import monotonic
from types import ModuleType

from shardwise.cost.options import TOFU, Options, Progress, go_on, quiet
from shardwise.documents import Comparison
from shardwise.errors import BadInput, Cancelled, SolverError
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.peers import data_parallel, flexflow, fsdp, megatron, mesh_tensorflow, optcnn, tofu
from shardwise.peers.answer import Answer, proven
from shardwise.peers.document import ALL, SPLITS, compare_document
from shardwise.peers.evaluate import points_of
from shardwise.search.search import Search, Subject, search
from shardwise.sharding.names import named_dimensions

OURS = {SPLITS: "shardwise-splits", ALL: "shardwise"}

Peer = Callable[[Progress], Answer]


def compare(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    options: Options | None = None,
    progress: Progress | None = None,
    *,
    proposals: int = flexflow.PROPOSALS,
    seed: int = 0,
) -> Comparison:
    """Returns all peers and this system on one cost model.

    Where the options allow ZeRO or recomputation there are two frontiers of ours, without them
    and with them, and FSDP is compared with the second. A peer without an answer under the
    options' limits says why. `proposals` and `seed` are for FlexFlow's random
    search. Raises `BadInput` for options that a comparison cannot have (pins, several counts of
    micro-batches, method `tofu`), and what `search` raises.
    """
    options, progress = options or Options(), progress or quiet
    _check(options, proposals)
    splits = replace(options, zero=(0,), recompute="never")
    subject = Subject.of(graph)
    ours = _ours(subject, hardware, gpus, splits, progress)
    answers = list(_answers(ours, progress, proposals, seed))
    rounds = [(SPLITS, answers, _own_answer(ours, SPLITS))]
    if (options.zero, options.recompute) != ((0,), "never"):
        sharded = []
        if 3 in options.zero:
            sharded.append(
                _timed_answer(fsdp, partial(fsdp.fsdp, ours, options.recompute), progress)
            )
        best = _ours(subject, hardware, gpus, options, progress)
        rounds.append((ALL, sharded, _own_answer(best, ALL)))
    return compare_document(ours, rounds)


def _check(options: Options, proposals: int) -> None:
    if options.method == TOFU:
        raise BadInput("Tofu is one of the peers", field="method", expected="our own method")
    if options.pins:
        raise BadInput("other systems have no pins", field="pin", expected="none")
    if len(options.micro_batches) != 1:
        raise BadInput(
            f"got {list(options.micro_batches)}", field="micro-batches", expected="one number"
        )
    if proposals < 1:
        raise BadInput(f"got {proposals}", field="proposals", expected="a whole number from 1")


def _ours(
    subject: Subject, hardware: Hardware, gpus: int, options: Options, progress: Progress
) -> Search:
    batches = options.micro_batches[0]
    ours = search(subject, hardware, gpus, options, progress, micro_batches=batches)
    if ours.solution.status == "cancelled":
        raise Cancelled
    return ours


def _answers(ours: Search, progress: Progress, proposals: int, seed: int) -> Iterator[Answer]:
    """Yields the peers that only split, one after the other."""
    problem, options = ours.problem, ours.options
    names = named_dimensions(problem.coarsened)
    peers: tuple[tuple[ModuleType, Peer], ...] = (
        (data_parallel, lambda _: data_parallel.data_parallel_answer(problem)),
        (optcnn, partial(optcnn.optcnn, problem, options)),
        (flexflow, partial(flexflow.flexflow, problem, proposals=proposals, seed=seed)),
        (tofu, partial(tofu.tofu, problem, options)),
        (mesh_tensorflow, partial(mesh_tensorflow.mesh_tensorflow, problem, options, names=names)),
        (megatron, partial(megatron.megatron, problem, options, names=names)),
    )
    for module, peer in peers:
        yield _timed_answer(module, peer, progress)


def _timed_answer(module: ModuleType, peer: Peer, progress: Progress) -> Answer:
    """Returns a peer's answer with its time; without one, the reason."""
    title: str = module.TITLE
    started = monotonic()
    go_on(progress, title, 0.0)
    try:
        answer = peer(lambda stage, fraction: progress(f"{title}: {stage}", fraction))
    except SolverError as reason:
        answer = Answer(module.METHOD, title, "", reason=str(reason))
    return replace(answer, seconds=monotonic() - started)


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
        tuple(points_of(ours)),
        frontier=True,
        epsilon=proven(float(solution.epsilon)),
        seconds=float(solution.seconds),
    )
