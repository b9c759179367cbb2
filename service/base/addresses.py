"""Addresses of clients: how they are counted, and which proxies' word for them is believed."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from shardwise.errors import BadInput

if TYPE_CHECKING:
    # Settings come through here, and a worker has no web framework installed.
    from starlette.requests import HTTPConnection

UNKNOWN = "unknown"
LONGEST = 64
"""Longest text that may be an address with its scope, in characters."""
OWN_NETWORK = 64
"""Bits of an IPv6 address that name a subscriber: the rest is its own to choose."""
MAPPED = IPv6Address("::ffff:0:0")


def address_of(connection: HTTPConnection) -> str:
    """Returns the name that a client's address is counted by."""
    client = connection.client
    return UNKNOWN if client is None else counted_address(client.host)


def counted_address(text: str) -> str:
    """Returns an IPv4 address, the /64 network of an IPv6 address, or `unknown`."""
    return _counted(text) if len(text) <= LONGEST else UNKNOWN


@lru_cache(maxsize=4096)
def _counted(text: str) -> str:
    address = plain_address(text)
    if address is None:
        return UNKNOWN
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((int(address), OWN_NETWORK), strict=False))


def plain_address(text: str) -> IPv4Address | IPv6Address | None:
    """Returns an address, IPv4 if the text is its mapped form; None if it is not an address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def trusted_networks(text: str) -> list[IPv4Network | IPv6Network]:
    """Returns the networks of `trusted_proxies`. Raises `BadInput` for anything else."""
    networks = []
    for part in (one.strip() for one in text.split(",")):
        if not part:
            continue
        try:
            network = ip_network(part)
        except ValueError:
            network = None
        if network is None or network.prefixlen == 0:
            raise BadInput(
                f"got {part[:60]!r}",
                field="trusted_proxies",
                expected="addresses and networks of proxies, such as 127.0.0.1, 10.0.3.0/24",
            )
        networks.append(network)
    return networks


def forwarded_allow_ips(text: str) -> list[str]:
    """Returns the proxies as the server expects them.

    A socket that listens on IPv6 too sees an IPv4 client under a mapped address.
    """
    ips = []
    for network in trusted_networks(text):
        ips.append(str(network))
        if isinstance(network, IPv4Network):
            mapped = (int(MAPPED) + int(network.network_address), 96 + network.prefixlen)
            ips.append(str(IPv6Network(mapped)))
    return ips
