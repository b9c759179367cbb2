"""`--stages` and `--schedules` of every command that asks about pipelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise.errors import BadInput
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, stages_from

if TYPE_CHECKING:
    from shardwise.cost.options import Options
    from shardwise.hardware import Devices
    from shardwise.question.question import QuestionKind

Command = TypeVar("Command", bound=Callable[..., Any])

SCHEDULES = (
    "How stages run micro-batches: some of 1f1b, 1f1b-eager, gpipe, zb-h1, interleaved:2 (two "
    "stages on each of --stages groups of devices) to interleaved:8, zb-h1:2 to zb-h1:8, zbv and "
    "dualpipev (two too)."
)


def stages_option(command: Command, text: str) -> Command:
    """Adds `--stages`."""
    return click.option("--stages", default="1", show_default=True, help=text)(command)


def schedules_option(command: Command, text: str = SCHEDULES) -> Command:
    """Adds `--schedules`."""
    return click.option(
        "--schedules", default=",".join(DEFAULT_SCHEDULES), show_default=True, help=text
    )(command)


def with_stages(command: Command) -> Command:
    """Adds both, for an answer that also has strategies without a pipeline."""
    text = (
        "Numbers of pipeline stages to search too, such as 2,4, or auto: all that are possible "
        "(docs/pipelines.md)."
    )
    return stages_option(schedules_option(command), text)


@dataclass(frozen=True)
class Stages:
    """A pipeline request: numbers of stages, None for `auto`, and schedules."""

    counts: list[int] | None
    schedules: list[str]

    @classmethod
    def of(cls, stages: str, schedules: str = ",".join(DEFAULT_SCHEDULES)) -> Stages:
        """Returns the options' request. Raises `BadInput` for text that is no number of stages, and
        for schedules without stages."""
        named = [name.strip() for name in schedules.split(",")]
        asked = cls(stages_from(stages, "--stages"), named)
        if not asked.piped and tuple(named) != DEFAULT_SCHEDULES:
            raise BadInput("apply only to pipelines", field="--schedules", expected="--stages")
        return asked

    @property
    def piped(self) -> bool:
        """Whether pipelines were requested."""
        return self.counts != [1]

    def arguments(self, *, given: bool = True) -> dict[str, Any]:
        """Returns the corresponding arguments of a query, none without a request; schedules only if
        they were `given`."""
        if not self.piped:
            return {}
        return {"stages": self.counts, **({"schedules": self.schedules} if given else {})}

    def check(
        self, options: Options, kind: QuestionKind, devices: Devices | None = None, **more: Any
    ) -> None:
        """Raises `BadInput` for a query without an answer, before its graph is read and in the same
        words with a server."""
        from shardwise.question.question import Question
        from shardwise.question.refusals import check

        check(Question.of(options, kind, devices, **more, **self.arguments()))
