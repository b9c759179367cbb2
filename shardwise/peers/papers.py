"""The systems of papers that search the splits of one problem, and how any peer is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Options, Progress, go_on
from shardwise.errors import SolverError
from shardwise.peers import flexflow, mesh_tensorflow, optcnn, tofu
from shardwise.peers.answer import Answer
from shardwise.sharding.names import NamedDimensions


@dataclass(frozen=True)
class Peer:
    """A system by its id and name, and how it is asked."""

    method: str
    title: str
    ask: Callable[[Progress], Answer]

    def answer(self, progress: Progress) -> Answer:
        """Returns the answer with its time; without one, the reason."""
        started = monotonic()
        go_on(progress, self.title, 0.0)
        try:
            answer = self.ask(lambda stage, fraction: progress(f"{self.title}: {stage}", fraction))
        except SolverError as reason:
            answer = Answer(self.method, self.title, "", reason=str(reason))
        return replace(answer, seconds=monotonic() - started)


def papers(
    problem: SearchProblem, options: Options, names: NamedDimensions, proposals: int, seed: int
) -> list[Peer]:
    """Returns the systems that search `problem`, which has splits alone."""
    walk = partial(flexflow.flexflow, problem, proposals=proposals, seed=seed)
    named = partial(mesh_tensorflow.mesh_tensorflow, problem, options, names=names)
    return [
        Peer(optcnn.METHOD, optcnn.TITLE, partial(optcnn.optcnn, problem, options)),
        Peer(flexflow.METHOD, flexflow.TITLE, walk),
        Peer(tofu.METHOD, tofu.TITLE, partial(tofu.tofu, problem, options)),
        Peer(mesh_tensorflow.METHOD, mesh_tensorflow.TITLE, named),
    ]
