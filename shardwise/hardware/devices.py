"""Devices: how many a question takes of which group (docs/hardware.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.documents.questions import MOST_BUNDLE_CHARACTERS
from shardwise.errors import BadInput
from shardwise.hardware.groups import expected_devices
from shardwise.hardware.hardware import Hardware

ALIKE = ""
"""The group of the devices of a profile without groups."""
MOST_DIGITS = 9
"""Digits of a count that are read: no group has as many devices."""


@dataclass(frozen=True)
class Devices:
    """Devices by group, in the order of the profile's groups; those of which none is taken are left
    out. Its text is `v100=2,1080ti=4`.

    Of a profile without groups all devices are alike and of one group without a name; the text is
    then their number.
    """

    counts: tuple[tuple[str, int], ...]

    @classmethod
    def alike(cls, gpus: int) -> Devices:
        """Returns this number of devices of a profile without groups."""
        return cls(((ALIKE, gpus),))

    @property
    def gpus(self) -> int:
        """Devices of all groups."""
        return sum(count for _, count in self.counts)

    @property
    def of_groups(self) -> bool:
        """Whether the profile has groups, and devices may be of several kinds."""
        return any(name != ALIKE for name, _ in self.counts)

    @property
    def asked(self) -> int | str:
        """What requests and documents have as `gpus`: a number, or the text of groups."""
        return str(self) if self.of_groups else self.gpus

    def __str__(self) -> str:
        if not self.of_groups:
            return str(self.gpus)
        return ",".join(f"{name}={count}" for name, count in self.counts)

    @classmethod
    def of(cls, hardware: Hardware, counts: Mapping[str, int], field: str = "gpus") -> Devices:
        """Returns the bundle with these devices by group, none where the count is 0.

        Raises `BadInput`, which names `field`, for a profile without groups, an unknown group, a
        negative count, more devices than a group has, and no devices at all.
        """
        _check_has_groups(hardware, field)
        known = {group.name: group for group in hardware.groups}
        for name, count in counts.items():
            if name not in known:
                raise _refused(hardware, field, f"unknown group {name[:40]!r}")
            most = known[name].gpus
            if not 0 <= count <= most:
                raise BadInput(
                    f"{count} devices of {name}", field=field, expected=f"1 to {most} of {name}"
                )
        if not any(counts.values()):
            raise _refused(hardware, field, "no devices")
        return cls(tuple((name, counts[name]) for name in known if counts.get(name)))

    @classmethod
    def parse(cls, text: str, hardware: Hardware, field: str = "gpus") -> Devices:
        """Returns the bundle that a text such as `v100=2,1080ti=4` names, in any order.

        Raises `BadInput`, which names `field`, for a profile without groups, a text of more than
        `MOST_BUNDLE_CHARACTERS`, a number alone, a part that is not NAME=COUNT, an unknown group,
        one that is named twice, a count below 1, and more devices than a group has.
        """
        _check_has_groups(hardware, field)
        if len(text) > MOST_BUNDLE_CHARACTERS:
            raise _refused(hardware, field, f"a text of {len(text)} characters")
        if text.strip().isdecimal():
            raise _refused(hardware, field, f"{text.strip()} devices of an unspecified group")
        counts: dict[str, int] = {}
        for part in text.split(","):
            name, equals, count = (piece.strip() for piece in part.partition("="))
            if not equals:
                raise _refused(hardware, field, f"got {part.strip()[:40]!r}")
            if name in counts:
                raise _refused(hardware, field, f"group {name[:40]!r} is named twice")
            counts[name] = _count(name, count, field)
        return cls.of(hardware, counts, field)


def _count(name: str, text: str, field: str) -> int:
    """Returns a group's count of devices. Raises `BadInput` unless it is a number of at least 1."""
    number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    if not (number and int(text) >= 1):
        raise BadInput(
            f"{text[:20]!r} devices of {name}", field=field, expected="a whole number of at least 1"
        )
    return int(text)


def _check_has_groups(hardware: Hardware, field: str) -> None:
    if not hardware.groups:
        raise BadInput(
            f"{hardware.name} has no groups of devices",
            field=field,
            expected="a number of devices alone",
        )


def _refused(hardware: Hardware, field: str, problem: str) -> BadInput:
    """Returns the error that says how devices are named, and which there are."""
    return BadInput(problem, field=field, expected=expected_devices(hardware.groups))


def devices_of(gpus: int | str | Devices, hardware: Hardware, field: str = "gpus") -> Devices:
    """Returns the devices that a question takes: a number of like ones, or devices by group.

    A text is either. Raises `BadInput`, which names `field`, for a number on a profile with groups
    and for groups on one without, and as `Devices.parse`.
    """
    if isinstance(gpus, Devices):
        if gpus.of_groups or hardware.groups:
            return Devices.of(hardware, dict(gpus.counts), field)
        return gpus
    if isinstance(gpus, str) and (hardware.groups or "=" in gpus):
        return Devices.parse(gpus, hardware, field)
    if hardware.groups:
        return Devices.parse(str(gpus), hardware, field)
    if isinstance(gpus, str):
        if not (gpus.isascii() and gpus.isdecimal() and len(gpus) <= MOST_DIGITS):
            raise BadInput(
                f"got {gpus[:40]!r}", field=field, expected="a whole number of at least 1"
            )
        return Devices.alike(int(gpus))
    return Devices.alike(gpus)
