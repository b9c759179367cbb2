"""Data parallelism on devices of several kinds (HeteroG §6.1), and Horovod's.

    EV    every device has as many samples
    CP    samples in proportion to the kinds' peaks, in small whole numbers
    PS    gradients go to a parameter server, which sends their sum back; every replica updates
    AR    gradients are summed by a collective, the faster of ring and hierarchical

There is neither ZeRO nor recomputation. The paper's server is one of the replicas' devices. Here it
is a block of devices that share its work, and each kind's first block is tried; the others of a
kind are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.mixed.catalogue import BY_PEAKS
from shardwise.cost.mixed.cluster import BLOCKS, BLOCKS_BIT
from shardwise.cost.mixed.sums import ServerSum
from shardwise.cost.options import Progress
from shardwise.cost.space import EVEN
from shardwise.hardware import JointLinks, RingLinks
from shardwise.peers.answer import Answer
from shardwise.peers.evaluate import Point
from shardwise.peers.mixed.space import Choices, Space, better
from shardwise.peers.papers import Peer
from shardwise.search.mixed.incumbents import Wish, strategies
from shardwise.sharding.names import sample_variables

HOROVOD = "horovod"


@dataclass(frozen=True)
class Baseline:
    """One of HeteroG's baselines."""

    method: str
    title: str
    even: bool
    server: bool

    @property
    def found_by(self) -> str:
        """How it is made, in a sentence."""
        shares = "as many samples" if self.even else "samples in proportion to its peak"
        summed = "a parameter server" if self.server else "a collective"
        return (
            f"every device has {shares}, gradients are summed by {summed}; "
            "with its best number of micro-batches"
        )


BASELINES = (
    Baseline("ev-ps", "EV-PS", even=True, server=True),
    Baseline("ev-ar", "EV-AR", even=True, server=False),
    Baseline("cp-ps", "CP-PS", even=False, server=True),
    Baseline("cp-ar", "CP-AR", even=False, server=False),
)


def baselines(spaces: Sequence[Space]) -> Iterator[Peer]:
    """Yields HeteroG's baselines over the spaces of all numbers of micro-batches."""
    for one in BASELINES:

        def ask(_: Progress, baseline: Baseline = one) -> Answer:
            return _answer(baseline, spaces)

        yield Peer(one.method, one.title, ask)


def _answer(baseline: Baseline, spaces: Sequence[Space]) -> Answer:
    problem = spaces[0].problem
    proportion = EVEN if baseline.even else by_peaks(problem)
    notes = []
    if not baseline.even and proportion == EVEN:
        notes.append("in whole samples shares by peaks are even, or a block has none: taken as EV")
    sums = _servers(problem) if baseline.server else {"": COLLECTIVE}
    points = [
        _best(spaces, Wish(proportion, number, stage=0, recompute=False), server)
        for server, number in sums.items()
    ]
    if baseline.server:
        best = better(points, spaces[0].limit_bytes)
        chosen = list(sums)[next(i for i, point in enumerate(points) if point is best)]
        others = ", ".join(name for name in sums if name != chosen)
        notes.append(f"the best is {chosen}" + (f"; tried too: {others}" if others else ""))
    notes += unsplit(problem, better(points, spaces[0].limit_bytes).choices)
    return Answer(
        baseline.method, baseline.title, baseline.found_by, tuple(points), notes=tuple(notes)
    )


def _best(spaces: Sequence[Space], wish: Wish, server: str) -> Point:
    """Returns a strategy with its best number of micro-batches."""
    points = [space.points(strategies(space.problem, [wish]))[0] for space in spaces]
    best = better(points, spaces[0].limit_bytes)
    return replace(best, label=f"{server}: {best.label}") if server else best


def unsplit(problem: MixedProblem, choices: Choices) -> list[str]:
    """Returns a note of the groups with samples that are not split among the blocks, if any."""
    samples = sample_variables(problem.coarsened)
    names = [
        group.name
        for group, cost, row, own in zip(
            problem.coarsened.groups, problem.costs, choices.tolist(), samples, strict=True
        )
        if own and cost.assignment[row, BLOCKS] not in own
    ]
    if not names:
        return []
    batch, blocks = problem.context.graph.batch_size, len(problem.cluster.blocks.blocks)
    more = f" and {len(names) - 1} more groups" if len(names) > 1 else ""
    return [
        f"{batch} samples are not split evenly among {blocks} blocks, "
        f"each computes all: {names[0]}{more}"
    ]


def by_peaks(problem: MixedProblem) -> int:
    """Returns the number of the proportion by peaks, the even one where there is none."""
    origins = [proportion.origin for proportion in problem.cluster.proportions]
    return origins.index(BY_PEAKS) if BY_PEAKS in origins else EVEN


def _servers(problem: MixedProblem) -> dict[str, int]:
    """Returns the numbers of the gradient sums at a server, by name."""
    sums = problem.context.mesh.gradient_sums
    return {one.name: n for n, one in enumerate(sums) if isinstance(one, ServerSum)}


def even_collective(problem: MixedProblem) -> Choices:
    """Returns EV-AR, (groups,)."""
    wish = Wish(EVEN, COLLECTIVE, stage=0, recompute=False)
    return np.asarray(strategies(problem, [wish])[0])


def horovod(spaces: Sequence[Space], ring: Callable[[Space], Space]) -> Answer:
    """Returns EV-AR with ring all_reduces alone.

    `ring` returns a space with such links.
    """
    notes = []
    some = spaces
    if is_ring(spaces[0].problem):
        notes.append("the ring is the faster all_reduce of every parameter: as EV-AR")
    else:
        some = [ring(space) for space in spaces]
    points = [space.points(even_collective(space.problem)[None])[0] for space in some]
    notes += unsplit(some[0].problem, points[0].choices)
    return Answer(
        HOROVOD,
        "Horovod",
        "every device has as many samples, gradients are summed along a ring; "
        "with its best number of micro-batches",
        (better(points, spaces[0].limit_bytes),),
        notes=tuple(notes),
    )


def is_ring(problem: MixedProblem) -> bool:
    """Returns whether no all_reduce of a parameter over all blocks is faster than its ring."""
    cluster = problem.cluster
    sizes = [
        float(t.size_bytes) for t in problem.context.graph.tensors.values() if t.role == "parameter"
    ]
    sizes_bytes = np.unique(sizes)
    support = tuple(range(len(cluster.blocks.blocks)))
    both = JointLinks(cluster.blocks), RingLinks(cluster.blocks)
    masks = range(BLOCKS_BIT, 1 << len(cluster.search.axes), 2)
    for ranks in {cluster.ranks_inside(mask) for mask in masks}:
        fast, ring = (one.times("all_reduce", sizes_bytes, support, ranks) for one in both)
        if (fast < ring).any():
            return False
    return True
