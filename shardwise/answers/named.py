"""Named strategies: the same for every layer, as trainers run them.

    DP n, DP n (ZeRO-1), DP n (ZeRO-2), FSDP n, HSDP n      without recomputation and with it
    TP t × DP n/t (ZeRO-1)                                  t = 2, 4, 8 inside a node

Each uses its fastest micro-batch count that fits. What tensor parallelism splits is found by a few
eliminations (`search/neighbours.py`); the others have one configuration for each group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod

import numpy as np

from shardwise.answers.label import MIXED, Labels
from shardwise.answers.roles import Kind
from shardwise.answers.summary import Summaries
from shardwise.answers.uniform import PLAIN, Degrees, Sharding, Uniform
from shardwise.cost.options import ALWAYS, NEVER
from shardwise.cost.part import Masks
from shardwise.errors import Cancelled, SolverError
from shardwise.hardware.levels import INSIDE
from shardwise.search.mixed.search import MixedSearch
from shardwise.search.neighbours import Candidate, fastest_allowed
from shardwise.search.search import Search
from shardwise.search.watch import OutOfTime, Watch
from shardwise.sharding.layout import shard_fits


@dataclass(frozen=True)
class Named:
    """A strategy with its label; `wanted` is the corresponding strategy of the whole model."""

    label: str
    wanted: Uniform
    strategy: Candidate


def named_strategies(
    searches: Sequence[Search], watch: Watch, *, within_s: float = inf, tensor: bool = True
) -> Iterator[Named]:
    """Yields the named strategies that fit, the simplest first, with `tensor` parallelism too.

    None for a search that was given up, on several kinds of devices, or without a strategy
    `within_s`.
    """
    whole = [
        one
        for one in searches
        if len(one.time_s)
        and not isinstance(one, MixedSearch)
        and (one.proof is None or one.proof.bound_s(one.limit_bytes) <= within_s)
    ]
    if not whole:
        return
    summaries, known = Summaries(whole), set[str]()
    for wanted, again in _wanted(whole[0]):
        if wanted.products.model > 1 and not tensor:
            continue
        try:
            found = [*_found(whole, summaries, wanted, again, watch)]
        except SolverError:
            continue
        except (Cancelled, OutOfTime):
            break
        fitting = [one for one in found if one.fits]
        if not fitting:
            continue
        one = min(fitting, key=lambda one: (one.time_s, one.peak_bytes))
        step = one.time_s, one.peak_bytes
        label = summaries.labels(one.search).of(one.choices, one.edge_choices, step)
        if not label.startswith(MIXED) and label not in known:
            known.add(label)
            yield Named(label, wanted, one)


def _wanted(search: Search) -> Iterator[tuple[Uniform, bool]]:
    """Yields strategies of the whole model, the simplest first, and whether they recompute."""
    gpus, options = search.mesh.gpus, search.options
    axes = search.problem.context.mesh.axes
    node = prod(axis.size for axis in axes if axis.level == INSIDE)
    shards = [PLAIN, *(Sharding(stage, gpus, node == gpus) for stage in (1, 2, 3))]
    if 1 < node < gpus:
        shards.append(Sharding(3, node, inside=True))
    kinds = {rows.kind for rows in Labels(search.problem).rows}
    split = [(Degrees(batch=gpus), shard) for shard in shards if gpus > 1 or not shard.stage]
    for t in (2, 4, 8):
        if t <= min(node, gpus):
            stage = 1 if gpus > t else 0
            own = Degrees(model=t, batch=gpus // t)
            split.append((own, Sharding(stage, gpus // t, inside=False) if stage else PLAIN))
    for again in (False, True):
        if options.recomputation == (NEVER if again else ALWAYS):
            continue
        for own, shard in split:
            if shard.stage in options.zero and not (again and own.model > 1):
                attention = own if {Kind.ATTENTION, Kind.WEIGHTS} <= kinds else None
                for experts in _experts(own, (node, gpus), kinds):
                    yield Uniform(own, attention, experts, shard), again
        if {Kind.ATTENTION, Kind.WEIGHTS} <= kinds and 3 in options.zero:
            for one in _in_context(gpus, search.problem.context.graph.batch_size):
                yield one, again


def _in_context(gpus: int, batch: int | None) -> Iterator[Uniform]:
    """Yields the ways to share samples and positions among all devices if there are fewer samples
    than devices: attention by heads, by gathered keys, and by a ring of keys."""
    samples = max(n for n in range(1, gpus + 1) if gpus % n == 0 and n <= (batch or gpus))
    if samples == gpus:
        return
    own = Degrees(position=gpus // samples, batch=samples)
    shard = Sharding(3, gpus, inside=False)
    yield Uniform(own, own._replace(model=own.position, position=1), None, shard)
    for ring in (False, True):
        yield Uniform(own, own, None, shard, ring=ring)


def _experts(own: Degrees, over: tuple[int, ...], kinds: set[Kind]) -> Sequence[Degrees | None]:
    """Returns the splits of a mixture's experts: as the products, and if these split only samples,
    experts over the devices of a node and over all."""
    if not {Kind.EXPERTS, Kind.WEIGHTS} <= kinds:
        return [None]
    degrees = dict.fromkeys(n for n in over if n > 1 and own.model == 1 and own.batch % n == 0)
    return [own, *(own._replace(expert=n, batch=own.batch // n) for n in degrees)]


def _found(
    searches: Sequence[Search], summaries: Summaries, wanted: Uniform, again: bool, watch: Watch
) -> Iterator[Candidate]:
    """Yields a strategy of the whole model under each micro-batch count that allows it."""

    def allowed(search: Search) -> Masks | None:
        batch = search.problem.context.graph.batch_size
        if batch is not None and not shard_fits(batch, wanted.products.batch):
            return None
        return summaries.labels(search).allowed(wanted, again)

    if wanted.products.model > 1:
        best = fastest_allowed(searches, searches[0], allowed, watch)
        if best is not None:
            yield best
        return
    for search in searches:
        masks = allowed(search)
        if masks is None:
            continue
        watch.go_on("named strategies", 1.0)
        costs = search.problem.costs
        rows = [
            int(np.where(mask, cost.time_s, np.inf).argmin())
            for mask, cost in zip(masks, costs, strict=True)
        ]
        choices = np.array([rows, rows], dtype=np.uint32)
        edges = np.concatenate(
            [search.problem.alternatives(choices[:1], smallest=lean) for lean in (False, True)]
        )
        replayed = search.replayer.replay(choices, edges)
        for p in range(2):
            peak_bytes, time_s = float(replayed.peak_bytes[p]), float(replayed.time_s[p])
            yield Candidate(search, choices[p], edges[p], peak_bytes, time_s)
