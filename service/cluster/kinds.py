"""Which hosts a plan on several kinds of devices needs, and which agents are of a kind.

A plan numbers its ranks block by block (docs/mixed.md), so its nodes in the order of their blocks
are the hosts of a launch in the order of their ranks, each with a kind and a number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shardwise.documents.plan import PlannedCluster
from shardwise.errors import BadInput
from shardwise.hardware.kinds import same_kind
from shardwise.validation import convert

MOST_HOSTS = 1024


class Host(msgspec.Struct, frozen=True):
    """Requirements on one host of a launch."""

    kind: str
    ranks: int


def hosts_of(plan: Mapping[str, Any]) -> list[Host]:
    """Returns the hosts that a plan on several kinds needs, in the order of their ranks.

    Empty for a plan on one kind. Raises `BadInput` for a cluster that cannot be one.
    """
    if plan.get("cluster") is None:
        return []
    cluster = convert(plan["cluster"], PlannedCluster, "plan.cluster")
    try:
        hosts = [Host(host.kind, host.ranks) for host in cluster.hosts()]
    except BadInput as error:
        raise error.inside("plan") from None
    ranks = sum(host.ranks for host in hosts)
    if ranks != plan["gpus"] or not 1 <= len(hosts) <= MOST_HOSTS:
        raise BadInput(
            f"{ranks} devices in the blocks of {len(hosts)} hosts",
            field="plan.cluster",
            expected=f"the plan's {plan['gpus']} devices, on at most {MOST_HOSTS} hosts",
        )
    return hosts


def slots_of_kind(inventory: Mapping[str, Any], slots: int, kind: str) -> int:
    """Returns how many ranks a host can run on devices of a kind that no other program uses.

    A host's own label comes first; without one, the names of its devices.
    """
    label = str(inventory.get("kind") or "")
    if label:
        return slots if same_kind(kind, label) else 0
    devices = inventory.get("devices", ())
    return sum(
        same_kind(kind, str(device["kind"])) and not device.get("used_by_others", False)
        for device in devices
    )
