"""A strategy in one line, in the words of parallel training.

    TP 4 (SP) × DP 2 (ZeRO-2), 8 micro-batches, recompute in 12 of 32 layers

The first term is a strategy of the whole model (`uniform.py`): the degrees of most parameters and
compute, of products by weights, of attention and of experts, and how most parameters are sharded.
It is used only if it holds: with every group as in that strategy, the replayed step is within
`AGREES` of the actual one, and still fits. Otherwise the line says `mixed:` and names the two
largest parts. docs/strategies.md explains the words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.answers.group_rows import GroupRows
from shardwise.answers.roles import GroupRoles, Kind, Role, group_roles, tokens
from shardwise.answers.uniform import PLAIN, Degrees, Sharding, Uniform
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.part import Masks
from shardwise.documents.prediction import Mixture
from shardwise.replay.replay import StrategyReplayer

AGREES = 0.02
"""Relative tolerance between the step of a label's strategy and that of the labelled one."""
NEARLY_ALL = 0.9
"""Share of parameters and compute that must follow a label if steps are unknown."""
SAID = 0.1
"""Share of parameters or compute above which a second part of a strategy is named."""
MIXED = "mixed:"
"""Prefix of the label of a strategy that replays like no strategy of the whole model."""
MOST_TRIED = 4
"""Maximum strategies of the whole model tried for a label."""

Choices = NDArray[np.uint32]


class Labels:
    """Labels the strategies of one search problem, sharing what is common.

    `groups` are the roles of each group's variables, if known from another problem of the model.
    With a `replayer` labels are checked by their steps, which must fit `limit_bytes` if the
    strategy does.
    """

    def __init__(
        self,
        problem: SearchProblem,
        groups: Sequence[GroupRoles] | None = None,
        replayer: StrategyReplayer | None = None,
        limit_bytes: float = inf,
    ) -> None:
        self._problem = problem
        self._given = groups
        self._replayer = replayer
        self._limit = limit_bytes
        self._rows_of: dict[Hashable, GroupRows] = {}
        self._nearest: dict[Hashable, int] = {}
        self._mixtures: dict[bytes, list[Mixture]] = {}
        self._copies: dict[tuple[bytes, bool], Choices] = {}
        self._steps: dict[tuple[bytes, bytes], tuple[float, float]] = {}
        self._may_recompute = [bool(cost.recompute.any()) for cost in problem.costs]

    @cached_property
    def groups(self) -> Sequence[GroupRoles]:
        """The roles of each group's variables."""
        coarsened, patterns = self._problem.coarsened, self._problem.context.patterns
        return self._given or patterns.once("roles", lambda: group_roles(coarsened))

    @cached_property
    def rows(self) -> Sequence[GroupRows]:
        """The configurations of each group. In a model without products all groups count as
        products."""
        axes = self._problem.context.mesh.axes
        some = any(roles.product for roles in self.groups)
        rows = []
        for cost, roles in zip(self._problem.costs, self.groups, strict=True):
            key = (id(cost), roles.roles, roles.kind, bool(roles.parameters))
            if key not in self._rows_of:
                kind = roles.kind if some else Kind.WEIGHTS
                self._rows_of[key] = GroupRows.of(cost, roles, kind, axes)
            rows.append(self._rows_of[key])
        return rows

    def of(
        self,
        choices: ArrayLike,
        edge_choices: ArrayLike | None = None,
        step: tuple[float, float] | None = None,
    ) -> str:
        """Returns the label of a strategy: `choices` a row of every group's costs, (groups,).

        `edge_choices` (edges,) and its replayed `step`, seconds and peak in bytes, are for
        the check by steps; without them most of the strategy has to be as the label says.
        """
        chosen = np.asarray(choices, dtype=np.uint32)
        return self._line(self._division(chosen, edge_choices, step), chosen)

    def mixed(self, choices: ArrayLike) -> str:
        """Returns the label of a strategy, distinct from that of the one that it replays like."""
        chosen = np.asarray(choices, dtype=np.uint32)
        return self._line(self._mixed(chosen), chosen)

    def _line(self, division: str, chosen: Choices) -> str:
        batches = self._problem.context.micro_batches
        parts = [
            division,
            f"{batches} micro-batches" if batches > 1 else "",
            self._recomputation(chosen),
        ]
        return ", ".join(filter(None, parts))

    def degrees(self, choices: ArrayLike) -> Degrees | None:
        """Returns the degrees of most products by weights; None without operators."""
        wanted = self.uniform(choices)
        return None if wanted is None else wanted.products

    def uniform(self, choices: ArrayLike) -> Uniform | None:
        """Returns the strategy of the whole model that most groups follow; None without
        operators."""
        return next(self.candidates(np.asarray(choices, dtype=np.uint32)), None)

    def name(self, wanted: Uniform) -> str:
        """Returns a strategy of the whole model in words."""
        return wanted.name(of_tokens=self._of_tokens)

    @cached_property
    def _of_tokens(self) -> bool:
        return tokens(self._problem.context.graph) is not None

    def _division(
        self,
        chosen: Choices,
        edge_choices: ArrayLike | None,
        step: tuple[float, float] | None,
    ) -> str:
        candidates = list(self.candidates(chosen))
        if not candidates:
            return "no operators"
        if self._replayer is None or edge_choices is None or step is None:
            most = self.mixtures(chosen)[0]
            sure = min(most.parameters, most.compute) >= NEARLY_ALL
            return self.name(candidates[0]) if sure else self._mixed(chosen)
        edges = np.asarray(edge_choices, dtype=np.uint32)
        # A strategy that does not fit may have the label of one that needs about as much.
        room = self._limit if step[1] <= self._limit else step[1] * (1 + AGREES)
        for wanted in candidates:
            for other, of_edges in self.like(wanted, chosen, edges):
                if np.array_equal(other, chosen):
                    return self.name(wanted)
                time_s, peak_bytes = self._replayed(self._replayer, other, of_edges)
                off = time_s / step[0] - 1.0
                if peak_bytes <= room and abs(off) <= AGREES:
                    return self.name(wanted)
                # The smallest copies only take longer.
                if peak_bytes <= room or off > AGREES:
                    break
        return self._mixed(chosen)

    def _replayed(
        self, replayer: StrategyReplayer, choices: Choices, edges: Choices
    ) -> tuple[float, float]:
        """Returns the seconds and peak of a strategy's step, cached because many plans resemble one
        strategy."""
        key = (choices.tobytes(), edges.tobytes())
        if key not in self._steps:
            replayed = replayer.replay(choices[None, :], edges[None, :])
            self._steps[key] = float(replayed.time_s[0]), float(replayed.peak_bytes[0])
        return self._steps[key]

    def _mixed(self, chosen: Choices) -> str:
        first, *others = self.mixtures(chosen)
        if others and max(others[0].parameters, others[0].compute) >= SAID:
            return f"{MIXED} {first.label} and {others[0].label}"
        return f"{MIXED} mostly {first.label}"

    def like(
        self, wanted: Uniform, chosen: Choices, edges: Choices
    ) -> Iterator[tuple[Choices, Choices]]:
        """Yields a strategy converted to one of the whole model, with edges: unchanged between
        unchanged groups, and otherwise the fastest copies, then the smallest."""
        other = self.as_uniform(wanted, chosen)
        changed = (other != chosen)[self._ends].any(axis=1)
        for smallest in (False, True):
            of_other = self._alternatives(other, smallest)
            yield other, np.where(changed, of_other, edges).astype(np.uint32)

    def _alternatives(self, choices: Choices, smallest: bool) -> Choices:
        """Returns the fastest copies of every edge of a strategy, or the smallest, (edges,)."""
        key = (choices.tobytes(), smallest)
        if key not in self._copies:
            of_one = self._problem.alternatives(choices[None, :], smallest=smallest)
            self._copies[key] = of_one[0]
        return self._copies[key]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """The groups at the ends of each edge, (edges, 2)."""
        pairs = [(edge.source, edge.target) for edge in self._problem.edges]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    def as_uniform(self, wanted: Uniform, choices: ArrayLike) -> Choices:
        """Returns a strategy with every group as in one of the whole model, except recomputation
        and light operators compatible with the products."""
        made = []
        chosen = np.asarray(choices, dtype=np.uint32)
        taken: dict[int, list[int]] = defaultdict(list)
        for rows, own in zip(self.rows, chosen.tolist(), strict=True):
            taken[id(rows.cost)].append(own)
        for rows, own in zip(self.rows, chosen.tolist(), strict=True):
            key = (id(rows), own, wanted)
            if key not in self._nearest:
                near = rows.nearest(wanted, own)
                often = [k for k in near.tolist() if k in taken[id(rows.cost)]]
                of_time = int(near[rows.cost.time_s[near].argmin()])
                self._nearest[key] = own if own in near else often[0] if often else of_time
            made.append(self._nearest[key])
        return np.array(made, dtype=np.uint32)

    def allowed(self, wanted: Uniform, again: bool | None) -> Masks:
        """Returns each group's configurations nearest to a strategy of the whole model: those that
        recompute or those that do not, if any, or both (None)."""
        known: dict[int, NDArray[np.bool_]] = {}
        for rows in self.rows:
            if id(rows) not in known:
                mask = np.zeros(len(rows.cost.time_s), dtype=bool)
                mask[rows.nearest(wanted)] = True
                only = mask if again is None else mask & (rows.cost.recompute == again)
                known[id(rows)] = only if only.any() else mask
        return [known[id(rows)] for rows in self.rows]

    def mixtures(self, choices: ArrayLike) -> list[Mixture]:
        """Returns the strategies that the groups follow, with shares of the parameters and the
        compute, the largest first. Light operators count with products that split the batch
        alike."""
        chosen = np.asarray(choices, dtype=np.uint32)
        key = chosen.tobytes()
        if key not in self._mixtures:
            self._mixtures[key] = self._found_mixtures(chosen)
        return self._mixtures[key]

    def _found_mixtures(self, chosen: Choices) -> list[Mixture]:
        first = next(self.candidates(chosen), None)
        if first is None:
            return []
        together = first.ulysses is not None
        parameters: dict[str, float] = defaultdict(float)
        compute: dict[str, float] = defaultdict(float)
        of_batch = {first.products.batch: first.products}
        for of, k in zip(self.rows, chosen.tolist(), strict=True):
            own = of.degrees_of(k)
            if of.kind in (Kind.WEIGHTS, Kind.EXPERTS):
                of_batch.setdefault(own.batch, own)
        for of, roles, k in zip(self.rows, self.groups, chosen.tolist(), strict=True):
            own, shard = of.degrees_of(k), of.sharding_of(k)
            ring = bool(of.rings[k])
            follows = together and own == self._of_kind(first, of.kind)
            follows = follows and (ring == first.ring or of.kind is not Kind.ATTENTION)
            if of.kind is Kind.LIGHT:
                splits = roles.has(Role.BATCH)
                own = of_batch.get(own.batch, own) if splits else first.products
                follows = own == first.products
            shard = shard if roles.parameters else first.sharding
            one = replace(first, sharding=shard) if follows else _alone(own, shard, ring)
            parameters[self.name(one)] += roles.parameters
            compute[self.name(one)] += float(of.cost.compute_s[k])
        weights, seconds = sum(parameters.values()) or 1.0, sum(compute.values()) or 1.0
        found = [Mixture(n, parameters[n] / weights, compute[n] / seconds) for n in parameters]
        return sorted(found, key=lambda one: -(one.parameters + one.compute))

    @staticmethod
    def _of_kind(wanted: Uniform, kind: Kind) -> Degrees | None:
        if kind is Kind.ATTENTION:
            return wanted.attention
        return wanted.experts if kind is Kind.EXPERTS else wanted.products

    def candidates(self, chosen: Choices) -> Iterator[Uniform]:
        """Yields strategies of the whole model that a strategy may be, the most likely first."""
        shares: dict[Kind, dict[tuple[Degrees, Sharding], float]] = {k: {} for k in Kind}
        total = float(sum(roles.parameters for roles in self.groups)) or 1.0
        costs = zip(self._problem.costs, chosen.tolist(), strict=True)
        seconds = sum(float(cost.compute_s[k]) for cost, k in costs) or 1.0
        for of, roles, k in zip(self.rows, self.groups, chosen.tolist(), strict=True):
            key = of.degrees_of(k), of.sharding_of(k) if roles.parameters else PLAIN
            share = roles.parameters / total + float(of.cost.compute_s[k]) / seconds
            shares[of.kind][key] = shares[of.kind].get(key, 0.0) + share
        ranked = {kind: sorted(of, key=lambda one: -of[one]) for kind, of in shares.items()}
        # Light operators stand for products only where there are none.
        products = next((ranked[kind] for kind in Kind if ranked[kind]), [])
        attention, experts = (
            ranked[kind][0][0] if ranked[kind] and ranked[Kind.WEIGHTS] else None
            for kind in (Kind.ATTENTION, Kind.EXPERTS)
        )
        seen: list[Uniform] = []
        for own, shard in products[:MOST_TRIED]:
            sequence = own.model > 1 and self._in_sequence(chosen, own)
            one = Uniform(own, attention, experts, shard, sequence, self._in_ring(chosen))
            for wanted in (one, one.plain):
                if wanted.ulysses is not None and wanted not in seen and len(seen) < MOST_TRIED:
                    seen.append(wanted)
                    yield wanted

    def _in_ring(self, chosen: Choices) -> bool:
        """Returns whether most attention that divides positions passes keys and values around a
        ring."""
        ring = gathered = 0.0
        for of, k in zip(self.rows, chosen.tolist(), strict=True):
            if of.kind is Kind.ATTENTION and of.degrees_of(k).position > 1:
                seconds = float(of.cost.compute_s[k])
                ring += seconds * of.rings[k]
                gathered += seconds * (not of.rings[k])
        return ring > gathered

    def _in_sequence(self, chosen: Choices, most: Degrees) -> bool:
        """Returns whether operators between products mostly divide positions where products have
        TP."""
        split = whole = 0.0
        for of, roles, k in zip(self.rows, self.groups, chosen.tolist(), strict=True):
            if of.kind is Kind.LIGHT and roles.has(Role.POSITION):
                own, seconds = of.degrees_of(k), float(of.cost.compute_s[k])
                split += seconds * (own.position > most.position)
                whole += seconds * (own.position <= most.position < own.repeated)
        return split > whole

    def _recomputation(self, chosen: Choices) -> str:
        """Returns the number of layers that recompute all or some operators."""
        rerun: dict[str | None, float] = defaultdict(float)
        able: dict[str | None, float] = defaultdict(float)
        for cost, roles, may, k in zip(
            self._problem.costs, self.groups, self._may_recompute, chosen.tolist(), strict=True
        ):
            rerun[roles.layer] += float(cost.compute_s[k]) * bool(cost.recompute[k])
            able[roles.layer] += float(cost.compute_s[k]) * may
        if not any(rerun.values()):
            return ""
        layers = [layer for layer in rerun if layer is not None]
        if not layers:
            return "recompute" if rerun[None] >= NEARLY_ALL * able[None] else "recompute in part"
        some = [layer for layer in layers if rerun[layer]]
        full = [layer for layer in some if rerun[layer] >= NEARLY_ALL * able[layer]]
        if full:
            apart = f" ({len(some) - len(full)} selective)" if len(some) > len(full) else ""
            return f"recompute in {_of(len(some), len(layers))} layers{apart}"
        if some:
            return f"selective recompute in {_of(len(some), len(layers))} layers"
        return "recompute outside the layers"


def _alone(own: Degrees, shard: Sharding, ring: bool) -> Uniform:
    """Returns the strategy of a group that does not follow the others."""
    if own.expert == 1:
        return Uniform(own, None, None, shard, ring=ring)
    return Uniform(own._replace(expert=1), None, own, shard)


def _of(count: int, all_of: int) -> str:
    return f"all {count}" if count == all_of else f"{count} of {all_of}"
