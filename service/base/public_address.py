"""Which addresses may be connected to when an outsider has chosen the name (ADR 0035).

The lists are IANA's special-purpose registries, written out: the value of `ipaddress.is_global` for
multicast, 6to4, NAT64 and 192.0.0.0/24 differs between releases of Python and is too generous in
some. IPv6 is the other way round: only what is assigned for global unicast is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
MAX_NETWORKS = 100

_NOT_PUBLIC = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # between carriers and their customers; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host, from inside a virtual machine
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_UNICAST = IPv6Network("2000::/3")
_NOT_UNICAST = tuple(
    IPv6Network(text)
    # Protocols (Teredo among them), documentation, 6to4, documentation.
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
_NAT64 = IPv6Network("64:ff9b::/96")


def reached(address: Address) -> Address:
    """Returns the IPv4 address that an IPv6 address leads to, or the address itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Returns whether an address belongs to the public Internet."""
    address = reached(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC)
    return address in _UNICAST and not any(address in network for network in _NOT_UNICAST)


@dataclass(frozen=True)
class Reach:
    """Which addresses may be connected to: public ones and `allow`, never those of `deny`."""

    allow: tuple[Network, ...] = ()
    deny: tuple[Network, ...] = ()

    def permits(self, text: str) -> bool:
        """Returns whether an address, as a resolver gives it, may be connected to."""
        address = ip_address(text)
        if _within(address, self.deny) or _within(reached(address), self.deny):
            return False
        return self.lists(text) or is_public(address)

    def lists(self, text: str) -> bool:
        """Returns whether an address is one that the operator has allowed by name."""
        return _within(reached(ip_address(text)), self.allow)


def _within(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def read_networks(text: str) -> tuple[Network, ...]:
    """Returns networks written with commas between them. Raises ValueError for anything else."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MAX_NETWORKS:
        raise ValueError(f"more than {MAX_NETWORKS} networks")
    return tuple(ip_network(part) for part in parts)
