"""A strategy in one line, in the words of parallel training.

    TP 4 × DP 2 (ZeRO-2), sequence parallel, 8 micro-batches, recompute in 12 of 32 layers

The degrees are those of most of the computation: of every product, convolution and attention, how
many shares each role of a variable (`roles.py`) has; light operators go with the degrees that
split the batch as they do. What the words mean is in docs/strategies.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from shardwise.advise.roles import GroupRoles, Role, group_roles, tokens
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.space import NONE, SearchAxis
from shardwise.hardware.levels import INSIDE

NEARLY_ALL = 0.9
"""The share from which a description is said of the whole strategy."""
MOST = 0.5
HARDLY = 0.1


@dataclass(frozen=True)
class Degrees:
    """Into how many shares a group's configuration divides each role; `repeated` ranks work
    alike."""

    model: int
    expert: int
    position: int
    batch: int
    repeated: int


@dataclass(frozen=True)
class Sharding:
    """A ZeRO stage over `ranks`; `whole` says that they are the whole data-parallel share.

    `inside` says that they are all within a node.
    """

    stage: int
    ranks: int
    whole: bool
    inside: bool


PLAIN = Sharding(0, 1, True, True)


@dataclass(frozen=True)
class _Described:
    """A configuration of a group."""

    degrees: Degrees
    sharding: Sharding
    recompute: bool
    compute_s: float


class Labels:
    """Names strategies of one search problem; what they share is found once.

    `groups` say what the variables of each group stand for, if that is known from another problem
    of the model.
    """

    def __init__(self, problem: SearchProblem, groups: Sequence[GroupRoles] | None = None) -> None:
        self._problem = problem
        self._given = groups
        self._axes = problem.context.mesh.axes
        self._known: dict[tuple[int, tuple[Role, ...], int], _Described] = {}
        self._may_recompute = [bool(cost.recompute.any()) for cost in problem.costs]

    @cached_property
    def groups(self) -> Sequence[GroupRoles]:
        """What the variables of each group stand for."""
        return self._given or group_roles(self._problem.coarsened)

    @cached_property
    def _of_tokens(self) -> bool:
        return tokens(self._problem.context.graph) is not None

    def of(self, choices: ArrayLike) -> str:
        """Returns the label of a strategy: `choices` a row of every group's costs, (groups,)."""
        described = self._all_described(choices)
        homes = self._homes(described)
        ranked = self._ranked(described, homes)
        batches = self._problem.context.micro_batches
        parts = [
            self._division(described, homes, ranked),
            self._sequence(described, ranked[0][0]) if ranked else "",
            f"{batches} micro-batches" if batches > 1 else "",
            self._recomputation(described),
        ]
        return ", ".join(filter(None, parts))

    def degrees(self, choices: ArrayLike) -> Degrees | None:
        """Returns the degrees that the label of a strategy names first; None without operators."""
        described = self._all_described(choices)
        ranked = self._ranked(described, self._homes(described))
        return ranked[0][0] if ranked else None

    def _all_described(self, choices: ArrayLike) -> list[_Described]:
        return [self._described(g, int(k)) for g, k in enumerate(np.asarray(choices))]

    def _described(self, group: int, choice: int) -> _Described:
        cost, roles = self._problem.costs[group], self.groups[group].roles
        key = (id(cost), roles, choice)
        if key not in self._known:
            row = cost.assignment[choice].tolist()
            mask = int(cost.zero_axes[choice])
            self._known[key] = _Described(
                self._degrees_of(row, roles),
                self._sharding_of(row, roles, int(cost.zero[choice]), mask),
                bool(cost.recompute[choice]),
                float(cost.compute_s[choice]),
            )
        return self._known[key]

    def _degrees_of(self, row: Sequence[int], roles: Sequence[Role]) -> Degrees:
        def shares(role: Role | None) -> int:
            return prod(
                axis.size
                for axis, v in zip(self._axes, row, strict=True)
                if (None if v == NONE else roles[v]) is role
            )

        return Degrees(
            shares(Role.MODEL),
            shares(Role.EXPERT),
            shares(Role.POSITION),
            shares(Role.BATCH),
            shares(None),
        )

    def _sharding_of(
        self, row: Sequence[int], roles: Sequence[Role], stage: int, mask: int
    ) -> Sharding:
        if stage == 0:
            return PLAIN
        over = [axis for a, axis in enumerate(self._axes) if mask >> a & 1]
        return Sharding(
            stage,
            prod(axis.size for axis in over),
            all(axis in over for axis in self._sharing(row, roles)),
            all(axis.level == INSIDE for axis in over),
        )

    def _sharing(self, row: Sequence[int], roles: Sequence[Role]) -> list[SearchAxis]:
        """Returns the axes of the data-parallel share or, without one, all that repeat."""
        of = [None if v == NONE else roles[v] for v in row]
        for alike in ((Role.BATCH,), (Role.POSITION, None)):
            axes = [axis for axis, role in zip(self._axes, of, strict=True) if role in alike]
            if axes:
                return axes
        return []

    def _ranked(
        self, described: Sequence[_Described], homes: Sequence[Degrees | None]
    ) -> list[tuple[Degrees, float]]:
        """Returns each of the degrees with its share of the compute time, the largest first."""
        time: dict[Degrees, float] = defaultdict(float)
        for one, home in zip(described, homes, strict=True):
            if home is not None:
                time[home] += one.compute_s
        total = sum(one.compute_s for one in described)
        return sorted(
            ((degrees, s / total if total else 1.0) for degrees, s in time.items()),
            key=lambda item: -item[1],
        )

    def _division(
        self,
        described: Sequence[_Described],
        homes: Sequence[Degrees | None],
        ranked: Sequence[tuple[Degrees, float]],
    ) -> str:
        def name(degrees: Degrees) -> str:
            groups = [g for g, home in enumerate(homes) if home == degrees]
            return self._named(degrees, *self._sharded(described, groups))

        if not ranked:
            return "no operators"
        first, share = ranked[0]
        if share >= NEARLY_ALL:
            return name(first)
        if share >= MOST:
            return f"{name(first)} in most layers ({share:.0%} of compute)"
        return "mixed: " + ", ".join(f"{name(d)} ({s:.0%} of compute)" for d, s in ranked[:2])

    def _homes(self, described: Sequence[_Described]) -> list[Degrees | None]:
        """Returns the degrees that each group goes with, None where its own are of no product."""
        products = [roles.product for roles in self.groups]
        if not any(products):
            return [one.degrees for one in described]
        time: dict[Degrees, float] = defaultdict(float)
        for one, product in zip(described, products, strict=True):
            if product:
                time[one.degrees] += one.compute_s
        of_batch: dict[int, Degrees] = {}
        for degrees in sorted(time, key=lambda d: time[d]):
            of_batch[degrees.batch] = degrees
        return [
            one.degrees if product else of_batch.get(one.degrees.batch)
            for one, product in zip(described, products, strict=True)
        ]

    def _named(self, degrees: Degrees, sharded: Sharding, share: float) -> str:
        """Returns the degrees in words; `share` of the parameters are `sharded`."""
        parts = [
            f"{name} {shares}"
            for name, shares in (
                ("TP", degrees.model),
                ("EP", degrees.expert),
                ("CP" if self._of_tokens else "spatial", degrees.position),
                ("replicated", degrees.repeated),
            )
            if shares > 1
        ]
        kind, note = "DP", ""
        if sharded.stage == 3 and share >= NEARLY_ALL and degrees.batch > 1:
            kind = "FSDP" if sharded.whole else "HSDP" if sharded.inside else "DP"
            if not sharded.whole:
                note = f" (shards of {sharded.ranks})"
        if sharded.stage and kind == "DP":
            over = "" if sharded.whole else f" over {sharded.ranks}"
            part = "" if share >= NEARLY_ALL else f" for {share:.0%} of parameters"
            note = f" (ZeRO-{sharded.stage}{over}{part})"
        if degrees.batch > 1:
            parts.append(f"{kind} {degrees.batch}")
        if not parts:
            return "one GPU"
        return " × ".join(parts) + note

    def _sharded(
        self, described: Sequence[_Described], groups: Sequence[int]
    ) -> tuple[Sharding, float]:
        """Returns how most parameters of these groups are sharded, and of how many of them."""
        elements: dict[Sharding, int] = defaultdict(int)
        for g in groups:
            elements[described[g].sharding] += self.groups[g].parameters
        total = sum(elements.values())
        if not total:
            return PLAIN, 1.0
        most = max(elements, key=lambda s: elements[s])
        if elements[most] < NEARLY_ALL * total:
            sharded = {s: n for s, n in elements.items() if s.stage}
            most = max(sharded, key=lambda s: sharded[s], default=most)
        share = elements[most] / total
        return (most, share) if share >= HARDLY else (PLAIN, 1.0)

    def _sequence(self, described: Sequence[_Described], most: Degrees) -> str:
        """Returns whether operators between products divide positions where products have TP."""
        if most.model == 1:
            return ""
        split = whole = 0.0
        for one, roles in zip(described, self.groups, strict=True):
            if not roles.product and roles.has(Role.POSITION):
                if one.degrees.position > most.position:
                    split += one.compute_s
                elif one.degrees.repeated > most.repeated:
                    whole += one.compute_s
        share = split / (split + whole) if split else 0.0
        if share < HARDLY:
            return ""
        kind = "sequence parallel" if self._of_tokens else "spatial between products"
        return kind if share >= NEARLY_ALL else f"{kind} in part"

    def _recomputation(self, described: Sequence[_Described]) -> str:
        """Returns in how many layers forward is run again, all of it or some operators."""
        rerun: dict[str | None, float] = defaultdict(float)
        able: dict[str | None, float] = defaultdict(float)
        for one, roles, may in zip(described, self.groups, self._may_recompute, strict=True):
            rerun[roles.layer] += one.compute_s * one.recompute
            able[roles.layer] += one.compute_s * may
        if not any(rerun.values()):
            return ""
        layers = [layer for layer in rerun if layer is not None]
        if not layers:
            share = rerun[None] / able[None]
            return "recompute" if share >= NEARLY_ALL else f"recompute in {share:.0%} of compute"
        some = [layer for layer in layers if rerun[layer]]
        full = [layer for layer in some if rerun[layer] >= NEARLY_ALL * able[layer]]
        words = []
        if full:
            words.append(f"recompute in {_of(len(full), len(layers))} layers")
        if len(some) > len(full):
            words.append(f"selective recompute in {_of(len(some) - len(full), len(layers))} layers")
        return ", ".join(words) or "recompute outside the layers"


def _of(count: int, all_of: int) -> str:
    return f"all {count}" if count == all_of else f"{count} of {all_of}"
