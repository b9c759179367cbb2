"""What kind of device a rank says it has, and how much slower it is on purpose.

A GPU's kind is the name that its driver gives it. A label takes its place where kinds cannot be
told apart so, as on CPUs, and ranks of a kind can be slowed (`slowed.py`): then one CPU measures
and runs what is meant for several kinds. A host sets its label by `SHARDWISE_KIND` and
`SHARDWISE_SLOWED`; where all ranks are on one host, `fast=2,slow=2` says that the first two ranks
are fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.measure.slowed import NOT_SLOWED, Slowed

KIND_VARIABLE, SLOWED_VARIABLE = "SHARDWISE_KIND", "SHARDWISE_SLOWED"
LONGEST = 100
MOST_RANKS = 4096
EXPECTED = "ranks by kind, such as fast=2,slow=2"
EXPECTED_SLOWED = "how many times as slow a kind is, such as slow=2"


@dataclass(frozen=True)
class Label:
    """A rank's kind, empty where its device's own name is meant, and how much slower it is."""

    kind: str = ""
    slowed: Slowed = NOT_SLOWED


NO_LABEL = Label()


def parse_kinds(text: str, field: str = "kinds") -> list[str]:
    """Returns the kind of each rank that a text such as `fast=2,slow=2` names.

    Raises `BadInput`, which names `field`.
    """
    kinds: list[str] = []
    for name, count in _pairs(text, field, EXPECTED):
        good = count.isascii() and count.isdecimal() and len(count) <= 4 and int(count) >= 1
        if not good:
            raise BadInput(f"{count[:20]!r} ranks of {name}", field=field, expected=EXPECTED)
        kinds += [checked_kind(name, field)] * int(count)
    if len(kinds) > MOST_RANKS:
        raise BadInput(f"{len(kinds)} ranks", field=field, expected=f"at most {MOST_RANKS}")
    return kinds


def parse_slowed(text: str, field: str = "slowed") -> dict[str, Slowed]:
    """Returns how much slower kinds are, from a text such as `slow=2.5`.

    Raises `BadInput`, which names `field`.
    """
    slowed: dict[str, Slowed] = {}
    for name, times in _pairs(text, field, EXPECTED_SLOWED):
        slowed[name] = _times(times, field)
    return slowed


def own_label(
    rank: int,
    ranks: int,
    kinds: str | None = None,
    slowed: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Label:
    """Returns the label of rank `rank` of `ranks`, from the options of all or the host's variables.

    Raises `BadInput` that names the option or the variable: kinds of another number of ranks, a
    slowed kind that no rank has, and what `Slowed` refuses.
    """
    if kinds is None:
        if slowed is not None:
            raise BadInput(
                "has no effect by itself", field="slowed", expected="--kinds with it, which says "
                "what ranks are of these kinds"
            )  # fmt: skip
        times = environment.get(SLOWED_VARIABLE) or "1"
        kind = environment.get(KIND_VARIABLE, "")
        own = Label(kind and checked_kind(kind, KIND_VARIABLE), _times(times, SLOWED_VARIABLE))
        if own.slowed.times != 1 and not kind:
            raise BadInput(
                "is missing",
                field=KIND_VARIABLE,
                expected=f"a kind where {SLOWED_VARIABLE} is set",
            )
        return own
    of_ranks, factors = parse_kinds(kinds), parse_slowed(slowed) if slowed else {}
    if len(of_ranks) != ranks:
        raise BadInput(f"{len(of_ranks)} ranks", field="kinds", expected=f"kinds of {ranks} ranks")
    for name in factors:
        if name not in of_ranks:
            raise BadInput(
                f"no rank is of kind {name!r}",
                field="slowed",
                expected=f"one of {', '.join(dict.fromkeys(of_ranks))}",
            )
    return Label(of_ranks[rank], factors.get(of_ranks[rank], NOT_SLOWED))


def checked_kind(name: str, field: str) -> str:
    """Returns a kind's name. Raises `BadInput`, which names `field`, if it cannot be one."""
    if not (0 < len(name) <= LONGEST and name.isprintable() and not set("=,") & set(name)):
        raise BadInput(
            f"got {name[:40]!r}",
            field=field,
            expected=f"a name of at most {LONGEST} characters without = and ,",
        )
    return name


def _pairs(text: str, field: str, expected: str) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals):
            raise BadInput(f"got {part.strip()[:40]!r}", field=field, expected=expected)
        pairs.append((name, value))
    return pairs


def _times(text: str, field: str) -> Slowed:
    try:
        return Slowed(float(text))
    except (ValueError, OverflowError):
        pass
    except BadInput as refused:
        raise BadInput(f"got {text[:20]!r}", field=field, expected=refused.expected) from None
    raise BadInput(f"got {text[:20]!r}", field=field, expected="a number of times from 1 to 4")
