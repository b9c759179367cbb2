"""Stage pins: where a pipeline must or must not be cut, and which stages may have a unit.

PATTERN:cut=before, after      a stage begins with the first unit that has a matching operator,
                               or ends with the last
PATTERN:cut!=before, after     none does
PATTERN:stage=N,… or !=N,…     the stages, from 0 to `last`, that may have these units
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from shardwise.cost.pins import LAST, PIPELINE_KEYS, STAGE, Pin, no_operator
from shardwise.errors import BadInput
from shardwise.search.pipelines.units import Units
from shardwise.sharding.coarsen import Coarsened
from shardwise.sharding.layout import Floats

EXAMPLES = 3
"""Number of example operator names in an error."""


def divided(pins: Sequence[Pin]) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
    """Returns the rules of pipelines and the others."""
    of_pipelines = tuple(pin for pin in pins if pin.key in PIPELINE_KEYS)
    return of_pipelines, tuple(pin for pin in pins if pin.key not in PIPELINE_KEYS)


@dataclass(frozen=True)
class StageRules:
    """Pins of some units: the cuts, by the unit behind, that a pipeline must have, and units with
    the stages that may have them."""

    cuts: frozenset[int] = frozenset()
    of_unit: tuple[tuple[int, Pin], ...] = ()

    @property
    def are_none(self) -> bool:
        """Whether everything is allowed."""
        return not self.cuts and not self.of_unit

    def allow(self, stages: int, stage: int, first: int, last: int) -> bool:
        """Returns whether stage `stage` of `stages` may have units `first` to `last` - 1.

        What holds a stage that is not allowed is not allowed either; a unit is in a stage that may
        have it where no other has it.
        """
        if any(first < cut < last for cut in self.cuts):
            return False
        return all(
            _allows(pin, stage, stages) for unit, pin in self.of_unit if first <= unit < last
        )

    def allowed(self, ranges_s: Sequence[Floats]) -> list[Floats]:
        """Returns each stage's times of unit ranges, (U + 1, U + 1), infinite where the pins do not
        allow them."""
        if self.are_none:
            return list(ranges_s)
        stages, bounds = len(ranges_s), range(len(ranges_s[0]))
        return [
            np.array(
                [
                    [of[i, j] if i < j and self.allow(stages, stage, i, j) else inf for j in bounds]
                    for i in bounds
                ]
            )
            for stage, of in enumerate(ranges_s)
        ]

    def leave(self, stages: int) -> bool:
        """Returns whether some stage of `stages` may have each unit."""
        units = {unit for unit, _ in self.of_unit}
        return len(self.cuts) < stages and all(
            any(self.allow(stages, stage, unit, unit + 1) for stage in range(stages))
            for unit in units
        )


def rules_of(pins: Sequence[Pin], coarsened: Coarsened, units: Units) -> tuple[StageRules, Units]:
    """Returns the pins of units, and the units without the forbidden cuts.

    Raises `BadInput` for a pin that matches no operator of a unit, and for a required cut that is
    forbidden or at an end of the model.
    """
    must: dict[int, Pin] = {}
    never: dict[int, Pin] = {}
    matched: list[tuple[Pin, list[int]]] = []
    for pin in pins:
        places = sorted(
            {
                units.of_group[group.index]
                for group in coarsened.groups
                if any(pin.binds(member.operator) for member in group.members)
            }
        )
        if not places:
            raise no_operator(pin, [op.name for op in coarsened.graph.operators[:EXAMPLES]])
        matched.append((pin, places))
        if pin.key != STAGE:
            for value in pin.values:
                cut = places[0] if value == "before" else places[-1] + 1
                if not pin.forbids and not 0 < cut < len(units):
                    raise BadInput(
                        f"{pin}: the model begins or ends there",
                        field="pin",
                        expected=f"a cut between two of {units.names[0]} … {units.names[-1]}",
                    )
                (never if pin.forbids else must)[cut] = pin
    for cut in must.keys() & never.keys():
        raise BadInput(
            f"{must[cut]} and {never[cut]} contradict each other",
            field="pin",
            expected=f"one of them for the cut before {units.names[cut]}",
        )
    joined = units.joined(never)
    number = dict(zip(units.of_group, joined.of_group, strict=True))
    return (
        StageRules(
            frozenset(number[cut] for cut in must),
            tuple(
                (unit, pin)
                for pin, places in matched
                if pin.key == STAGE
                for unit in sorted({number[place] for place in places})
            ),
        ),
        joined,
    )


def _allows(pin: Pin, stage: int, stages: int) -> bool:
    named = {stages - 1 if value == LAST else int(value) for value in pin.values}
    return (stage in named) != pin.forbids
