"""FSDP: data parallelism with ZeRO stage 3 (Rajbhandari et al. 2020; Zhao et al. 2023).

Parameters, gradients and optimizer state of every group lie in shards over all devices that
would repeat them; a parameter is gathered for forward and again for backward. With recomputation
every block is run again in backward (activation checkpointing, as FSDP is used for large models);
in a model without blocks what saves activations on its own.
"""

from __future__ import annotations

from shardwise.cost.options import Progress
from shardwise.peers.answer import Answer
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.evaluate import Point, evaluate, with_steps
from shardwise.peers.spaces import problem_with
from shardwise.replay.replay import Replayer
from shardwise.search.search import Search

METHOD = "fsdp"
TITLE = "FSDP (ZeRO-3)"


RUNS = {
    "never": ("never",),
    "auto": ("never", "always"),
    "always": ("always",),
}
LABELS = {"never": "zero-3", "always": "zero-3·recompute"}


def fsdp(search: Search, recompute: str, progress: Progress) -> Answer:
    """Returns points `zero-3` unless `recompute` is `always`, `zero-3·recompute` unless `never`.

    They have their replayed steps, which do not rank them.
    """
    points: list[Point] = []
    notes: tuple[str, ...] = ()
    for run in RUNS[recompute]:
        problem = problem_with(search, (3,), run, progress)
        rows = data_parallel_rows(problem)
        notes = rows.notes()
        replayer = Replayer(problem, search.options.step, search.subject.kits)
        point = evaluate(problem, rows.choices, label=LABELS[run])
        points += with_steps([point], replayer, by_sum=True)
    return Answer(
        METHOD,
        TITLE,
        "data parallelism with parameters, gradients and state in shards over all devices",
        tuple(points),
        notes=notes,
    )
