"""The sizes of a step: its batch and sequence length, asked for beside a graph or in its name.

`llama3-8b:batch=128,seq=4096` names the graph of a preset, of `shipped:NAME` or of a file at these
sizes, wherever a graph is named. Other options of a preset may stand among them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TypeVar

from shardwise.errors import BadInput

G = TypeVar("G")
"""A graph that is read."""

MOST_SIZE = 2**32
"""The largest batch or length, as of a capture."""

_OPTION = r"[A-Za-z_][A-Za-z0-9_.]*=[^:,]*"
_NAMED = re.compile(rf"(?P<base>.+?):(?P<options>{_OPTION}(?:,{_OPTION})*)", re.DOTALL)


@dataclass(frozen=True)
class StepSizes:
    """`batch` counts samples of a step, `seq` tokens of a sample; None: as captured."""

    batch: int | None = None
    seq: int | None = None

    @property
    def asked(self) -> dict[str, int]:
        """The sizes that are not as captured, by name."""
        return {n: value for n in NAMES if (value := getattr(self, n)) is not None}


NAMES = tuple(field.name for field in fields(StepSizes))
AS_CAPTURED = StepSizes()


def sized(graph: str, sizes: StepSizes) -> str:
    """Returns a graph's name with sizes in it. Raises `BadInput` where it has one of them, and for
    what is no size."""
    base, named = split_sizes(graph)
    for name, value in sizes.asked.items():
        if not 1 <= value <= MOST_SIZE:
            raise BadInput(
                f"got {value}", field=name, expected=f"a whole number from 1 to {MOST_SIZE}"
            )
        if name in named.asked:
            raise BadInput(
                f"given twice: {value}, and {getattr(named, name)} in {graph[:80]}",
                field=name,
                expected="one of them",
            )
    both = {**named.asked, **sizes.asked}
    if not both:
        return graph
    given = _NAMED.fullmatch(base)
    joint = "," if given else ":"
    return f"{base}{joint}{','.join(f'{name}={value}' for name, value in both.items())}"


def split_sizes(graph: str) -> tuple[str, StepSizes]:
    """Returns a graph's name without the sizes in it, and these. Raises `BadInput` for a size that
    is none."""
    match = _NAMED.fullmatch(graph)
    if match is None:
        return graph, AS_CAPTURED
    found: dict[str, int] = {}
    others = []
    for option in match["options"].split(","):
        name, _, text = option.partition("=")
        if name not in NAMES:
            others.append(option)
        elif name in found:
            raise BadInput("given twice", field=name, expected="once")
        elif text.isascii() and text.isdigit() and 1 <= int(text[:12]) <= MOST_SIZE:
            found[name] = int(text)
        else:
            raise BadInput(
                f"got {text[:40]!r}", field=name, expected=f"a whole number from 1 to {MOST_SIZE}"
            )
    base = match["base"]
    return f"{base}:{','.join(others)}" if others else base, StepSizes(**found)


def sized_source(graph: str | G, batch: int | None, seq: int | None) -> str | G:
    """Returns what a question is about: a graph's name with sizes in it, or a graph as it is.

    Raises `BadInput` for sizes of a graph that is read.
    """
    sizes = StepSizes(batch, seq)
    return sized(graph, sizes) if isinstance(graph, str) else as_it_is(graph, sizes)


def as_it_is(graph: G, sizes: StepSizes) -> G:
    """Returns a graph that is read, which has its own sizes. Raises `BadInput` for others."""
    for name, value in sizes.asked.items():
        raise BadInput(
            f"{value}, and the graph is read and has its own",
            field=name,
            expected=f"a preset or a file by its name, or load_graph(NAME, {name}={value})",
        )
    return graph
