"""What devices of several groups cost, by the offers with their kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.hardware.devices import Devices
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.offers import Offer


@dataclass(frozen=True)
class GroupPrice:
    """What the devices of a group cost: USD an hour for every `devices` of them that are begun.

    `offer` is whose price it is, None of one that the question says.
    """

    usd_per_hour: float
    devices: int
    offer: Offer | None = None

    def of(self, count: int) -> float:
        """Returns USD an hour for this many devices."""
        return -(-count // self.devices) * self.usd_per_hour


def group_prices(
    hardware: Hardware, offers: Iterable[Offer], given: Mapping[str, float] | None = None
) -> dict[str, GroupPrice]:
    """Returns the prices of a profile's groups by name; a group without one is left out.

    `given` are USD per hour of one device. Without one it is the cheapest offer on demand of whole
    instances whose devices are of the group's kind, with as many in a node. Raises `BadInput` whose
    field is `prices.NAME` for an unknown group and a price that is not a finite number above 0.
    """
    prices: dict[str, GroupPrice] = {}
    names = [group.name for group in hardware.groups]
    for name, usd in (given or {}).items():
        at = f"prices.{name[:40]}"
        if name not in names:
            raise BadInput("unknown group", field=at, expected=f"one of {', '.join(names)}")
        if not 0 < usd < float("inf"):
            raise BadInput(f"got {usd}", field=at, expected="a finite number above 0")
        prices[name] = GroupPrice(usd, 1)
    offered = node_prices(offers)
    for group in hardware.groups:
        known = offered.get((group.kind, group.per_node))
        if known is not None:
            prices.setdefault(group.name, known)
    return prices


def node_prices(offers: Iterable[Offer]) -> dict[tuple[str, int], GroupPrice]:
    """Returns the cheapest price on demand of a whole instance, by the kind of its devices and
    their number. Offers without a profile are left out."""
    prices: dict[tuple[str, int], GroupPrice] = {}
    for offer in offers:
        if offer.hardware is None or offer.spot:
            continue
        key = (offer.profile().devices[0].kind, offer.gpus_per_instance)
        known = prices.get(key)
        if known is None or offer.usd_per_hour < known.usd_per_hour:
            prices[key] = GroupPrice(offer.usd_per_hour, offer.gpus_per_instance, offer)
    return prices


def bundle_usd_per_hour(bundle: Devices, prices: Mapping[str, GroupPrice]) -> float | None:
    """Returns what a bundle costs, in USD per hour; None where a group has no price."""
    if any(name not in prices for name, _ in bundle.counts):
        return None
    return sum(prices[name].of(count) for name, count in bundle.counts)
