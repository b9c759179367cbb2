"""Several bundles of one profile: those that a curve or a quote is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from shardwise.documents.questions import MOST_BUNDLES
from shardwise.errors import BadInput
from shardwise.hardware.devices import Devices
from shardwise.hardware.groups import DeviceGroup, groups_in_words
from shardwise.hardware.hardware import Hardware

USUAL = "usual"
"""What stands for the usual bundles in a list of bundles."""

MOST_PARTS = 24
"""Parts of a profile that are tried where nothing says which."""


MOST_HALVED = 6
"""Groups of a profile of which halves are among its parts."""


def by_speed(hardware: Hardware) -> list[DeviceGroup]:
    """Returns a profile's groups, that of the fastest devices first.

    A device is faster by its peak in float32, of equals by its memory's bandwidth.
    """

    def speed(group: DeviceGroup) -> tuple[float, float]:
        device = hardware.kind(group.kind)
        return device.peak("float32"), device.memory_bandwidth_bytes_per_s

    return sorted(hardware.groups, key=speed, reverse=True)


def usual_bundles(hardware: Hardware) -> list[Devices]:
    """Returns each group alone, the two fastest groups together, the three fastest and so on up to
    everything, each with all its devices.

    Raises `BadInput` for a profile without groups.
    """
    groups = by_speed(hardware)
    counts = [{group.name: group.gpus} for group in groups]
    counts += [{g.name: g.gpus for g in groups[:n]} for n in range(2, len(groups) + 1)]
    return [Devices.of(hardware, one, "bundles") for one in counts]


def parse_bundles(
    texts: Sequence[str | Devices], hardware: Hardware, field: str = "bundles"
) -> list[Devices]:
    """Returns the bundles of a list, each once: those of few devices first, of equals in the order
    of the profile's groups. `usual` stands for `usual_bundles`.

    So the same bundles are one list, however they are written. Raises `BadInput`, which names the
    field and the place in the list, as `Devices.parse` does, and for no bundle or more than
    `MOST_BUNDLES`.
    """
    if not hardware.groups:
        raise BadInput(
            f"{hardware.name} has no groups of devices", field=field, expected="a largest count"
        )
    if not texts:
        raise BadInput(
            "no bundles",
            field=field,
            expected=f"bundles such as {usual_bundles(hardware)[-1]}, or {USUAL}; groups: "
            f"{groups_in_words(hardware.groups)}",
        )
    found: set[Devices] = set()
    for place, text in enumerate(texts):
        at = f"{field}[{place}]"
        if isinstance(text, Devices):
            found.add(Devices.of(hardware, dict(text.counts), at))
        elif text.strip() == USUAL:
            found.update(usual_bundles(hardware))
        else:
            found.add(Devices.parse(text, hardware, at))
    if len(found) > MOST_BUNDLES:
        raise BadInput(
            f"{len(found)} bundles", field=field, expected=f"at most {MOST_BUNDLES} bundles"
        )
    return sorted(found, key=lambda bundle: _place(bundle, hardware))


def parts_of(hardware: Hardware) -> list[Devices]:
    """Returns parts of a profile, few devices first: of each group nothing, half of the nodes (of
    one node half of the devices) or everything.

    Of more than `MOST_PARTS` the usual bundles come first, then those of the fewest devices.
    Raises `BadInput` for a profile without groups.
    """
    usual = usual_bundles(hardware)
    others = [bundle for bundle in _halves(hardware) if bundle not in usual]
    others.sort(key=lambda bundle: _place(bundle, hardware))
    return sorted([*usual, *others][:MOST_PARTS], key=lambda bundle: _place(bundle, hardware))


def _halves(hardware: Hardware) -> Iterator[Devices]:
    choices = [sorted({0, _half(group), group.gpus}) for group in hardware.groups]
    # Of many groups there are only the usual bundles: others are 3 to the power of the groups.
    for counts in product(*choices) if len(choices) <= MOST_HALVED else ():
        if any(counts):
            names = (group.name for group in hardware.groups)
            yield Devices.of(hardware, dict(zip(names, counts, strict=True)), "hardware")


def _half(group: DeviceGroup) -> int:
    if group.nodes > 1:
        return group.nodes // 2 * group.per_node
    return group.per_node // 2


def _place(bundle: Devices, hardware: Hardware) -> tuple[int, tuple[int, ...]]:
    """Returns the key by which bundles are ordered: few devices first, and of equals those that
    have many of the profile's first groups."""
    counts = dict(bundle.counts)
    return bundle.gpus, tuple(-counts.get(group.name, 0) for group in hardware.groups)
