"""measure --operators: the operators that a graph's plans need, added to a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise.cli.arguments import load_graph
from shardwise.cli.output import note, progress, say
from shardwise.cost.options import MOMENTS, Options
from shardwise.errors import BadInput
from shardwise.hardware import (
    Hardware,
    hardware_document,
    hardware_from_document,
    load_hardware,
)

if TYPE_CHECKING:
    from shardwise.measure.kinds.operators import OperatorQuestion

Command = TypeVar("Command", bound=Callable[..., Any])
OF = ("frontier", "all")


def operator_options(command: Command) -> Command:
    """Adds the options of `--operators`."""
    for option in reversed(
        (
            click.option("--operators", help="A graph whose plans' operators are measured too."),
            click.option("--hardware", help="With --operators: add them to this profile."),
            click.option(
                "--gpus",
                type=click.IntRange(1),
                help="With --operators: plans for this number of devices. Default: all.",
            ),
            click.option(
                "--operators-of",
                type=click.Choice(OF),
                default="frontier",
                show_default=True,
                help="Of the plans on the frontier, or of all that are searched.",
            ),
            click.option(
                "--optimizer",
                type=click.Choice(list(MOMENTS)),
                default="adam",
                show_default=True,
                help="With --operators: whose update is measured.",
            ),
        )
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class OperatorWish:
    """The operators to measure; `profile` is the one to which they are added, if not a new one."""

    graph: str
    profile: Hardware | None
    gpus: int | None
    of: str
    optimizer: str

    @classmethod
    def of_options(
        cls,
        operators: str | None,
        hardware: str | None,
        gpus: int | None,
        of: str,
        optimizer: str,
    ) -> OperatorWish | None:
        """Returns the wish, or None without `--operators`. Raises `BadInput`."""
        if operators is None:
            if hardware is not None or gpus is not None:
                raise BadInput(
                    "has no effect by itself",
                    field="hardware" if hardware is not None else "gpus",
                    expected="--operators GRAPH with it",
                )
            return None
        profile = None if hardware is None else load_hardware(hardware)
        return cls(operators, profile, gpus, of, optimizer)

    def question(self, time_limit_s: float) -> OperatorQuestion:
        """Returns the query that ranks of several kinds answer together."""
        from shardwise.measure.kinds.operators import OperatorQuestion

        return OperatorQuestion(
            load_graph(self.graph),
            "all" if self.of == "all" else "frontier",
            Options(optimizer=self.optimizer),
            time_limit_s,
            self.gpus,
        )

    def arguments(self) -> list[str]:
        """Returns the options as arguments for ranks of several kinds."""
        given = ["--operators", self.graph, "--operators-of", self.of]
        given += ["--optimizer", self.optimizer]
        return given if self.gpus is None else [*given, "--gpus", str(self.gpus)]

    def added_to(
        self,
        profile: Hardware,
        *,
        time_limit_s: float,
        memory_bytes: float | None,
        allow_busy: bool,
        quiet: bool,
    ) -> Hardware:
        """Returns the profile with the operators measured; notes those that are not."""
        from shardwise.measure.operators import add_operators
        from shardwise.measure.operators.profile import default_effort

        graph = load_graph(self.graph)
        gpus = self.gpus or profile.per_node * (profile.nodes or 1)
        effort = replace(
            default_effort(graph, profile, gpus), time_limit_s=time_limit_s, allow_busy=allow_busy
        )
        if memory_bytes is not None:
            effort = replace(effort, memory_limit_bytes=memory_bytes)
        with progress(quiet, stoppable=True) as tell:
            document, outcome = add_operators(
                hardware_document(profile),
                graph,
                gpus,
                options=Options(optimizer=self.optimizer),
                of="all" if self.of == "all" else "frontier",
                effort=effort,
                progress=tell,
                tell=tell,
            )
        for line in outcome.notes():
            note(f"note: {line}")
        return hardware_from_document(document)


def show_operators(profile: Hardware) -> None:
    """Prints how many calls the profile has measured, and how noisy they are."""
    if not profile.operators:
        return
    calls = sum(len(table.times_s) for table in profile.operators)
    kinds = {table.kind for table in profile.operators}
    spreads = sorted(spread for table in profile.operators for spread in table.spreads)
    fitted = sum(len(table.times_s) for table in profile.operators if table.derived)
    lines = f", times of {fitted} on fitted lines" if fitted else ""
    say(
        f"operators: {calls} calls of {len(kinds)} kinds measured, "
        f"spread {spreads[len(spreads) // 2]:.1%} in the median{lines}"
    )
