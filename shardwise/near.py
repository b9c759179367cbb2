"""Names that a mistyped or shortened one may stand for."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

MOST = 5
"""Names that an error suggests."""

LONGEST = 100
"""Characters of a name that are looked at."""

LEAST = 0.55
"""The likeness, 0 to 1, from which a name counts as near."""


def plain(name: str) -> str:
    """Returns a name without case, spaces and punctuation, at most `LONGEST` characters of it."""
    return "".join(c for c in name[:LONGEST].lower() if c.isalnum())


def near(
    name: str,
    names: Iterable[str],
    most: int = MOST,
    *,
    least: float = LEAST,
    parts: bool = True,
) -> list[str]:
    """Returns at most `most` of the names, nearest first: those that contain `name`, then those
    that begin alike or have most of their characters in common.

    Case and punctuation do not count. `least` is the likeness, 0 to 1, from which a name is near;
    without `parts` a name that contains `name` needs it too. Empty where none is near.
    """
    wanted = plain(name)
    if not wanted:
        return []
    scored = [(_likeness(wanted, plain(other), parts), other) for other in dict.fromkeys(names)]
    close = sorted((-score, other) for score, other in scored if score >= least)
    return [other for _, other in close[:most]]


def did_you_mean(names: Iterable[str]) -> str:
    """Returns what an error says after the unknown name: `: did you mean A, B?`, or nothing."""
    listed = ", ".join(names)
    return f": did you mean {listed}?" if listed else ""


def _likeness(wanted: str, other: str, parts: bool) -> float:
    """Returns 0 to 2: above 1 where `parts` count and `wanted` is one of `other`, the more of it
    the more."""
    if parts and wanted in other:
        return 1 + len(wanted) / len(other) + other.startswith(wanted) / LONGEST
    return SequenceMatcher(None, wanted, other, autojunk=False).ratio()
