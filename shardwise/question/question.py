"""A question: what a plan, a frontier, a curve, a quote or a comparison is asked with.

Every door (command line, HTTP, MCP, Python) makes one, and `refusals.py` says which combinations of
its members have no answer. Graph and hardware are beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwise.cost.options import Options
from shardwise.errors import BadInput
from shardwise.hardware import Devices
from shardwise.pipeline.asked import ANY, DEFAULT_SCHEDULES, FASTEST, NO_STAGES, OBJECTIVES

QuestionKind = Literal["plan", "frontier", "curve", "quote", "compare", "pricing"]


@dataclass(frozen=True)
class Question:
    """What is asked of a graph on some hardware.

    `devices` are those of a plan, a frontier or a comparison; None where offers or a curve's places
    name them. `several_kinds` says whether they are of groups of a profile, and may be of several
    kinds. `objective` picks a point of the frontier (`OBJECTIVES`), `point` names one by its id.
    `order` is that of execution (None: as usual), `space` a trainer whose strategies alone are
    searched, or `any`. `stages` are numbers of pipeline stages, None for all that are possible,
    (1,) for no pipelines; `schedules` how they run micro-batches (None: those that are usual).
    """

    options: Options = field(default_factory=Options)
    kind: QuestionKind = "plan"
    devices: Devices | None = None
    several_kinds: bool = False
    objective: str = FASTEST[0]
    point: str | None = None
    order: str | None = None
    space: str = ANY
    stages: tuple[int, ...] | None = NO_STAGES
    schedules: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        options: Options,
        kind: QuestionKind = "plan",
        devices: Devices | None = None,
        *,
        several_kinds: bool = False,
        objective: str = FASTEST[0],
        point: str | None = None,
        order: str | None = None,
        space: str = ANY,
        stages: Sequence[int] | None = NO_STAGES,
        schedules: Sequence[str] | None = None,
    ) -> Question:
        """Returns the question of a door's arguments, the same for every order of its numbers; the
        usual schedules are as good as none.

        Raises `BadInput` for an objective that does not exist.
        """
        if objective not in OBJECTIVES:
            raise BadInput(
                f"unknown objective {objective[:40]!r}",
                field="objective",
                expected=", ".join(OBJECTIVES),
            )
        named = None if schedules is None else tuple(schedules)
        if named == DEFAULT_SCHEDULES:
            named = None
        return cls(
            options,
            kind,
            devices,
            several_kinds or (devices is not None and devices.of_groups),
            objective,
            point,
            order,
            space,
            None if stages is None else tuple(sorted(set(stages))),
            named,
        )

    @property
    def piped(self) -> bool:
        """Whether pipelines are asked for: one stage is none."""
        return self.stages is None or set(self.stages) != set(NO_STAGES)

    @property
    def picks_fastest(self) -> bool:
        """Whether the answer is the fastest strategy that fits: not a point of the frontier."""
        return self.objective in FASTEST and self.point is None

    @property
    def asked_schedules(self) -> tuple[str, ...]:
        """The schedules, those that are usual where none are named."""
        return DEFAULT_SCHEDULES if self.schedules is None else self.schedules


def staged_arguments(
    stages: Sequence[int] | str | None, schedules: Sequence[str]
) -> dict[str, Any]:
    """Returns `stages` and `schedules` as a question takes them, of those of a request: numbers,
    `auto` or none, and names, none of them where they are left out or one stage is asked for."""
    counts = None if isinstance(stages, str) else tuple(stages or NO_STAGES)
    alone = stages is not None and counts is not None and set(counts) == set(NO_STAGES)
    return {"stages": counts, "schedules": None if alone else tuple(schedules) or None}
