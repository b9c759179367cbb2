"""The strategy that a label says, read back from its text: what a reader of the label would pin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from shardwise.answers.label import Labels
from shardwise.answers.roles import Kind
from shardwise.answers.uniform import PLAIN, Degrees, Sharding, Uniform
from shardwise.cost.options import quiet
from shardwise.cost.part import Masks
from shardwise.search.chosen import Chosen
from shardwise.search.neighbours import Candidate, fastest_allowed
from shardwise.search.search import Search
from shardwise.search.watch import Watch

_FACTOR = re.compile(
    r"(TP|EP|Ulysses|CP|ring|spatial|replicated|DP|FSDP|HSDP) (\d+)( \(S?P?(?:spatial)?\))?"
)
_STAGE = re.compile(r"\(ZeRO-(\d)(?: over (\d+))?\)")
_SHARDS = re.compile(r"\(shards of (\d+)\)")


def pinned(label: str, searches: Sequence[Search], best: Chosen) -> Candidate | None:
    """Returns the fastest strategy found that the label of the best allows, with its micro-batches.

    The same groups recompute as in the best: a label says in how many layers, not which. None
    where the label says that the strategy is mixed, or that nothing is divided.
    """
    of = best.search
    again = [
        bool(cost.recompute[k])
        for cost, k in zip(of.problem.costs, of.solution.choices[best.point], strict=True)
    ]
    wanted = uniform_of(label.split(", ")[0], of)
    if wanted is None:
        return None

    def allowed(search: Search) -> Masks | None:
        if search.micro_batches != of.micro_batches:
            return None
        labels = Labels(search.problem)
        either = {flag: labels.allowed(wanted, flag) for flag in (False, True)}
        return [either[flag][group] for group, flag in enumerate(again)]

    return fastest_allowed(searches, of, allowed, Watch(quiet, None))


def uniform_of(division: str, of: Search) -> Uniform | None:
    """Returns the strategy of the whole model that a label's first term says."""
    if division.startswith("mixed"):
        return None
    shares = {name: int(n) for name, n, _ in _FACTOR.findall(division)}
    sequence = "(SP)" in division or "(spatial)" in division
    gpus = of.mesh.gpus
    tp, cp = shares.get("TP", 1), shares.get("CP", shares.get("ring", shares.get("spatial", 1)))
    ulysses, repeated = shares.get("Ulysses", 1), shares.get("replicated", 1)
    batch = gpus // (tp * cp * ulysses * repeated)
    own = Degrees(model=tp, position=cp * ulysses, batch=batch, repeated=repeated)
    shard = PLAIN
    usual = batch if batch > 1 else own.position * repeated
    if "FSDP" in shares:
        shard = Sharding(3, shares["FSDP"], inside=False)
    elif (some := _SHARDS.search(division)) is not None:
        shard = Sharding(3, int(some[1]), inside=True)
    elif (stage := _STAGE.search(division)) is not None:
        shard = Sharding(int(stage[1]), int(stage[2] or usual), inside=False)
    kinds = {rows.kind for rows in Labels(of.problem).rows}
    attention = own._replace(model=tp * ulysses, position=cp)
    experts = own._replace(expert=shares.get("EP", 1), batch=max(batch // shares.get("EP", 1), 1))
    assert prod(own) == gpus
    return Uniform(
        own,
        attention if Kind.ATTENTION in kinds and Kind.WEIGHTS in kinds else None,
        experts if Kind.EXPERTS in kinds and Kind.WEIGHTS in kinds else None,
        shard,
        sequence,
        "ring" in division,
    )
