"""How much of a list of operators is described."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardwise.tdl.core_aten import CORE_ATEN
from shardwise.tdl.describe import Description
from shardwise.tdl.registry import descriptions


@dataclass(frozen=True)
class Coverage:
    """Kinds of the core list: split, replicated for a reason, and not described."""

    split: tuple[str, ...]
    replicated: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def described(self) -> int:
        return len(self.split) + len(self.replicated)

    @property
    def total(self) -> int:
        return self.described + len(self.missing)


def coverage(kinds: Iterable[str] = CORE_ATEN) -> Coverage:
    """Returns what the registry covers of a list of kinds, by default core ATen."""
    by_kind = {entry.kind: entry for entry in descriptions()}
    split, replicated, missing = [], [], []
    for kind in sorted(kinds):
        if kind not in by_kind:
            missing.append(kind)
        elif by_kind[kind].replicated:
            replicated.append(kind)
        else:
            split.append(kind)
    return Coverage(tuple(split), tuple(replicated), tuple(missing))


def shipped() -> tuple[Description, ...]:
    """Returns the descriptions that come with Shardwise, without those of installed packages."""
    return tuple(d for d in descriptions() if d.function.__module__.startswith("shardwise.tdl."))
