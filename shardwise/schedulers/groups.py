"""Curves over bundles of several groups of devices: the curve of each group alone.

Gavel, AdaptDL and Sia have throughputs by the type of one GPU, so a point whose bundle has devices
of one group says something to them, and a point of several does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.errors import BadInput, NotFound
from shardwise.schedulers.counts import Counts, points_of

FIELD = "gpu_type"
EXAMPLE = "v100=V100,p100=P100"


def is_over_bundles(curve: Mapping[str, Any]) -> bool:
    """Returns whether the points of a `shardwise.curve/1` document are bundles of groups."""
    return any(isinstance(point, dict) and point.get("bundle") for point in points_of(curve))


def counts_by_group(curve: Mapping[str, Any], gpu_type: str | None = None) -> dict[str, Counts]:
    """Returns the counts of each group of a curve over bundles, those where nothing fits left out.

    `gpu_type` is as in `names_of`; a group's own name is the default. Raises `BadInput`, which
    names the point, for a bundle of several groups, and `NotFound` where nothing fits at all.
    """
    points: dict[str, list[Any]] = {}
    for number, point in enumerate(points_of(curve)):
        bundle = point.get("bundle") if isinstance(point, dict) else None
        group, equals, count = str(bundle or "").partition("=")
        if not equals or not count.isdecimal():
            raise BadInput(
                f"got {str(bundle)[:80]!r}",
                field=f"points[{number}].bundle",
                expected="devices of one group: this scheduler has throughputs of one GPU type",
            )
        points.setdefault(group, []).append({**point, "bundle": None})
    names = names_of(gpu_type, points)
    found: dict[str, Counts] = {}
    reason: NotFound | None = None
    for group, of_group in points.items():
        try:
            found[group] = Counts.of({**curve, "points": of_group}, names.get(group, group))
        except NotFound as error:
            reason = error
    if not found and reason is not None:
        raise reason
    return found


def names_of(gpu_type: str | None, groups: Iterable[str]) -> dict[str, str]:
    """Returns what a scheduler calls the GPUs of groups, as a text such as `v100=V100,p100=P100`
    says; a name alone is that of the only group.

    Groups that the text leaves out are left out. Raises `BadInput` for a group that is not there, a
    name alone for several groups, and one name for two groups.
    """
    known = list(groups)
    if not gpu_type:
        return {}
    if "=" not in gpu_type and len(known) == 1:
        return {known[0]: gpu_type}
    names: dict[str, str] = {}
    for part in gpu_type.split(","):
        group, _, name = (piece.strip() for piece in part.partition("="))
        if group not in known or not name:
            raise BadInput(
                f"got {part.strip()[:80]!r}",
                field=FIELD,
                expected=f"names by group, such as {EXAMPLE}; groups: {', '.join(known)}",
            )
        if name in names.values():
            raise BadInput(f"{name[:80]!r} twice", field=FIELD, expected="each name once")
        names[group] = name
    return names
