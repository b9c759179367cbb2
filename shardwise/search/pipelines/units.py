"""Units: the pieces of a model between which a pipeline may be cut.

Blocks (items of lists of modules, `sharding/segments.py`) are units, and so is what lies before,
between and after them: embeddings, heads. A model without such lists is cut wherever few tensors
cross. Tensors only go forward: units that would send one back are joined.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardwise.sharding.coarsen import Coarsened
from shardwise.sharding.pattern import Crossing, Patterns
from shardwise.sharding.segments import Blocks

MOST_UNITS = 2048
"""Maximum number of units of a model with blocks; more are joined in runs of equal length."""

MOST_NARROW = 64
"""Maximum number of units of a model without blocks."""

FEW_TENSORS = 2
"""Maximum number of tensors over a cut of a model without blocks."""


@dataclass(frozen=True)
class Units:
    """The units of a coarsened graph, in order; `of_group[g]` is the unit of group g."""

    names: tuple[str, ...]
    of_group: tuple[int, ...]
    crossings: tuple[Crossing, ...]

    @classmethod
    def of(cls, patterns: Patterns) -> Units:
        """Returns the units of a graph; one if it cannot be cut."""
        coarsened, crossings = patterns.coarsened, patterns.crossings
        labels = _labels(coarsened)
        if len(set(labels) - {None}) > 1:
            place = _joined(_places(labels, crossings), crossings)
            most = MOST_UNITS
        else:
            place = _joined(_narrow(len(labels), crossings), crossings)
            most = MOST_NARROW
        place = _fewer(
            place, most, [group.anchor.semantics.forward_flops for group in coarsened.groups]
        )
        return cls(_names(coarsened, labels, place), tuple(place), crossings)

    def __len__(self) -> int:
        return len(self.names)

    def joined(self, cuts: Collection[int]) -> Units:
        """Returns the units without some cuts, given by the unit behind each."""
        first = [unit for unit in range(len(self)) if unit == 0 or unit not in cuts]
        of_unit = [bisect_right(first, unit) - 1 for unit in range(len(self))]
        return Units(
            tuple(self.names[unit] for unit in first),
            tuple(of_unit[unit] for unit in self.of_group),
            self.crossings,
        )

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of each unit."""
        of_unit: list[list[int]] = [[] for _ in self.names]
        for group, unit in enumerate(self.of_group):
            of_unit[unit].append(group)
        return tuple(map(tuple, of_unit))

    def groups_of(self, first: int, last: int) -> list[int]:
        """Returns the groups of units `first` to `last` - 1."""
        return [group for unit in self.groups[first:last] for group in unit]

    def crossing(self, cut: int) -> dict[str, int]:
        """Returns the tensors that go from units before `cut` to units from it on, with the group
        that makes each.

        A tensor that is read several stages further on passes through those between.
        """
        return dict(self._over[cut])

    @cached_property
    def _over(self) -> list[dict[str, int]]:
        """The tensors over each cut, as `crossing`; none at both ends."""
        last: dict[str, tuple[int, int]] = {}
        for c in self.crossings:
            unit = max(self.of_group[c.target], last.get(c.tensor, (0, 0))[1])
            last[c.tensor] = c.source, unit
        over: list[dict[str, int]] = [{} for _ in range(len(self) + 1)]
        for tensor, (source, unit) in last.items():
            for cut in range(self.of_group[source] + 1, unit + 1):
                over[cut][tensor] = source
        return over


def _labels(coarsened: Coarsened) -> list[str | None]:
    """Returns the block of each group; None outside blocks."""
    blocks = Blocks.of_coarsened(coarsened)
    return [blocks.of_group(group.members) for group in coarsened.groups]


def _places(labels: Sequence[str | None], crossings: Sequence[Crossing]) -> list[int]:
    """Returns a position for each group: block i at 2i + 1, groups between blocks at even ones.

    A group that no block precedes is right before its first reader.
    """
    numbers: dict[str, int] = {}
    for label in labels:
        if label is not None:
            numbers.setdefault(label, 2 * len(numbers) + 1)
    before: list[list[int]] = [[] for _ in labels]
    after: list[list[int]] = [[] for _ in labels]
    for crossing in crossings:
        before[crossing.target].append(crossing.source)
        after[crossing.source].append(crossing.target)
    place = [0 if label is None else numbers[label] for label in labels]
    outside = [group for group, label in enumerate(labels) if label is None]
    for group in outside:
        place[group] = max((place[s] + place[s] % 2 for s in before[group]), default=0)
    for group in reversed(outside):
        if place[group] == 0 and after[group]:
            place[group] = min(place[t] - place[t] % 2 for t in after[group])
    return place


def _joined(place: Sequence[int], crossings: Sequence[Crossing]) -> list[int]:
    """Returns the positions numbered from 0, joined wherever a tensor would go back."""
    known = sorted(set(place))
    rank = {old: new for new, old in enumerate(known)}
    illegal = [0] * (len(known) + 1)
    for c in crossings:
        source, target = rank[place[c.source]], rank[place[c.target]]
        if source > target:
            illegal[target + 1] += 1
            illegal[source + 1] -= 1
    number, open_backs, numbers = 0, 0, [0]
    for cut in range(1, len(known)):
        open_backs += illegal[cut]
        number += open_backs == 0
        numbers.append(number)
    return [numbers[rank[old]] for old in place]


def _narrow(groups: int, crossings: Sequence[Crossing]) -> list[int]:
    """Returns units of groups in topological order, cut wherever few tensors cross."""
    opened: Counter[int] = Counter()
    last: dict[tuple[str, int], int] = {}
    for c in crossings:
        last[c.tensor, c.source] = max(last.get((c.tensor, c.source), 0), c.target)
    for (_, source), target in last.items():
        opened[source + 1] += 1
        opened[target + 1] -= 1
    place, unit, across = [], 0, 0
    for group in range(groups):
        across += opened[group]
        unit += group > 0 and across <= FEW_TENSORS
        place.append(unit)
    return place


def _fewer(place: Sequence[int], most: int, flops: Sequence[float]) -> list[int]:
    """Returns at most `most` units: neighbours are joined, the lightest pair first."""
    count = max(place, default=-1) + 1
    weight = [0.0] * count
    for unit, of_group in zip(place, flops, strict=True):
        weight[unit] += of_group
    runs = [[unit] for unit in range(count)]
    while len(runs) > most:
        at = min(range(len(runs) - 1), key=lambda i: weight[i] + weight[i + 1])
        runs[at] += runs.pop(at + 1)
        weight[at] += weight.pop(at + 1)
    numbers = {unit: number for number, run in enumerate(runs) for unit in run}
    return [numbers[unit] for unit in place]


def _names(
    coarsened: Coarsened, labels: Sequence[str | None], place: Sequence[int]
) -> tuple[str, ...]:
    """Returns the name of each unit: its first block, or its first operator."""
    names: list[str] = [""] * (max(place, default=-1) + 1)
    for label, unit in zip(labels, place, strict=True):
        if label is not None and not names[unit]:
            names[unit] = label
    for group, unit in zip(coarsened.groups, place, strict=True):
        names[unit] = names[unit] or group.name
    return tuple(names)
