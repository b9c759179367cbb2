"""Groups of like nodes in a profile with several kinds of devices (docs/hardware.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from shardwise.hardware.levels import Level


@dataclass(frozen=True)
class GroupLink:
    """A link of a group's nodes.

    `bandwidth_bytes_per_s` is unidirectional: of one device inside a node, of all cards of one node
    together in the network. `latency_s` is that of one step, `efficiency` the fraction of the
    bandwidth that collectives reach.
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float


@dataclass(frozen=True)
class DeviceGroup:
    """`nodes` nodes with `per_node` devices of one kind each.

    `inside` links the devices of a node, `network` is one node's way to all other nodes, whatever
    their group. None: as the profile's level inside a node, or between nodes. With one device in a
    node `inside` never matters.
    """

    name: str
    kind: str
    nodes: int
    per_node: int
    inside: GroupLink | None = None
    network: GroupLink | None = None

    @property
    def gpus(self) -> int:
        """Devices of all the group's nodes."""
        return self.nodes * self.per_node

    def levels(self, inside: Level, between: Level) -> tuple[Level, Level]:
        """Returns the levels of this group alone; those given are what links of its own replace."""
        return (
            _level(inside, self.per_node, self.inside),
            _level(between, self.nodes, self.network),
        )

    def sources(self, sources: Mapping[str, str], kinds: Sequence[str]) -> Mapping[str, str]:
        """Returns the sources of this group's figures, named as in a profile without groups.

        `groups.NAME.inside` and `groups.NAME.network` say where its links' figures are from,
        `devices.KIND.…` where its device's. What is said of other groups and `kinds` is left out.
        """
        own = {
            f"groups.{self.name}.inside": "levels.inside",
            f"groups.{self.name}.network": "levels.between",
            f"devices.{self.kind}": "devices",
        }
        apart = [
            "groups",
            "paths",
            *(f"devices.{kind}" for kind in kinds),
            *(["levels.inside"] if self.inside else []),
            *(["levels.between"] if self.network else []),
        ]
        shared = {
            field: text
            for field, text in sources.items()
            if not any(_is_of(field, name) for name in apart)
        }
        renamed = {
            plain + field.removeprefix(name): text
            for name, plain in own.items()
            for field, text in sources.items()
            if _is_of(field, name)
        }
        return shared | renamed


@dataclass(frozen=True)
class GroupPath:
    """A way between the nodes of two groups that is slower than the nodes' cards.

    `bandwidth_bytes_per_s` is what one node of `source` and one of `target` reach, one way, and the
    same in the other direction. `latency_s` is that of one step. `collectives`: whether collectives
    go this way too, or only what one node sends another (parameter servers, changes of shares), as
    where those take slower software. In a file `source` is called `from`, and `target` is called
    `to`.
    """

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float
    collectives: bool = True

    @property
    def ends(self) -> frozenset[str]:
        """The names of both groups."""
        return frozenset((self.source, self.target))


def _level(level: Level, size: int, link: GroupLink | None) -> Level:
    """Returns a level of `size` units, with a group's link in place of its own if there is one."""
    return replace(level, size=size, **({} if link is None else asdict(link)))


def _is_of(field: str, name: str) -> bool:
    """Returns whether a source is that of `name` or of a part of it."""
    return field == name or field.startswith(f"{name}.")


def groups_in_words(groups: Iterable[DeviceGroup]) -> str:
    """Returns the names of groups with their devices: `v100 (2 V100-PCIe-16GB), …`."""
    return ", ".join(f"{group.name} ({group.gpus} {group.kind})" for group in groups)


def expected_devices(groups: tuple[DeviceGroup, ...]) -> str:
    """Returns how a question names devices of these groups, with an example and all of them."""
    example = ",".join(f"{group.name}={group.gpus}" for group in groups[:2])
    return f"devices by group, such as --gpus {example}; groups: {groups_in_words(groups)}"
