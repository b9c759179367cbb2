"""Where a webhook may lead: its URL, and the addresses that its name has at this moment."""

from __future__ import annotations

from collections.abc import Sequence

from service.base.public_address import Reach, read_networks
from service.base.receiver_url import ReceiverUrl
from service.base.settings import Settings


class NotReachable(Exception):
    """Why a receiver must not be connected to; names none of its addresses."""


def reach_of(settings: Settings) -> Reach:
    """Returns which addresses webhooks may lead to."""
    return Reach(
        read_networks(settings.webhook_allow_networks),
        read_networks(settings.webhook_deny_networks),
    )


def permitted(url: ReceiverUrl, addresses: Sequence[str], reach: Reach) -> list[str]:
    """Returns the addresses if all of them may be connected to.

    Raises `NotReachable` if one of them may not be: a name that leads to several places is as
    dangerous as the most dangerous of them. Plain http is for networks that the operator allows.
    """
    if not addresses:
        raise NotReachable("its name has no address")
    if not all(reach.permits(address) for address in addresses):
        raise NotReachable("its name leads to an address that is not public")
    if url.scheme != "https" and not all(reach.lists(address) for address in addresses):
        raise NotReachable("a public receiver must be https")
    return list(addresses)
