"""Agents' hosts and devices, and the launches that are on them, by kind of device, for the metrics.

Agents name their devices, so the number of distinct kinds is bounded: those with most devices; all
others, and devices without a name, are `other`. A host without devices is of kind `none`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.cluster.gangs import LAUNCH_ACTIVE
from service.store.agents import AGENT_STATES, state_columns, state_named
from service.store.launch_tables import Agent, Assignment, Launch

OTHER = "other"
NONE = "none"
CHUNK = 500
"""Inventories that one query reads."""

Counts = dict[tuple[str, str], int]
"""Counts by kind of device and state."""


@dataclass
class ByKind:
    """Devices and hosts by their agents' states, and launches that are placed; a host or launch
    with devices of several kinds counts under each."""

    devices: Counts = field(default_factory=dict)
    hosts: Counts = field(default_factory=dict)
    launches: Counts = field(default_factory=dict)


class DeviceKinds:
    """Counts by kind; a process remembers what an inventory says until an agent sends another."""

    def __init__(self, most_kinds: int) -> None:
        self._most = most_kinds
        self._known: dict[tuple[str, str], Counter[str]] = {}

    def read(self, session: Session) -> ByKind:
        """Returns the counts of all tenants; missing states are 0."""
        rows = session.execute(select(Agent.id, Agent.inventory_hash, *state_columns())).all()
        self._learn(session, {(agent, digest) for agent, digest, _, _ in rows})
        kinds_of = {agent: self._known[agent, digest] for agent, digest, _, _ in rows}
        devices: Counter[str] = Counter()
        for kinds in kinds_of.values():
            devices.update(kinds)
        named = set(sorted(devices, key=lambda kind: (-devices[kind], kind))[: self._most])
        found = ByKind()
        for agent, _, silent, drains in rows:
            state = state_named(silent, drains)
            of_agent = _labelled(kinds_of[agent], named)
            _add(found.devices, of_agent, state)
            _add(found.hosts, dict.fromkeys(of_agent or (NONE,), 1), state)
        for (_, state), agents in _placed(session).items():
            of_agents = [_labelled(kinds_of[agent], named) for agent in agents if agent in kinds_of]
            on = {kind for kinds in of_agents for kind in kinds or (NONE,)}
            _add(found.launches, dict.fromkeys(on, 1), state)
        _fill(found.devices, AGENT_STATES)
        _fill(found.hosts, AGENT_STATES)
        _fill(found.launches, LAUNCH_ACTIVE)
        return found

    def _learn(self, session: Session, keys: set[tuple[str, str]]) -> None:
        """Reads the inventories that are not known, and forgets those that no agent has now."""
        known = {key: kinds for key, kinds in self._known.items() if key in keys}
        new = sorted(keys - known.keys())
        for first in range(0, len(new), CHUNK):
            chunk = dict(new[first : first + CHUNK])
            query = select(Agent.id, Agent.inventory).where(Agent.id.in_(chunk))
            for agent, inventory in session.execute(query):
                known[agent, chunk[agent]] = kinds_in(inventory)
        self._known = {key: known.get(key, Counter()) for key in keys}


def kinds_in(inventory: dict[str, Any]) -> Counter[str]:
    """Returns how many devices of each kind an inventory has, those without a name under ''.

    A host that says its `kind` itself has all its devices under that name, also if it has none.
    """
    devices = inventory.get("devices") or []
    own = str(inventory.get("kind") or "")
    if own:
        return Counter({own: len(devices)})
    return Counter(str(device.get("kind") or "") for device in devices)


def _labelled(kinds: Counter[str], named: set[str]) -> Counter[str]:
    """Returns the counts by label."""
    labelled: Counter[str] = Counter()
    for kind, count in kinds.items():
        labelled[kind if kind in named and kind else OTHER] += count
    return labelled


def _add(counts: Counts, of_kind: dict[str, int], state: str) -> None:
    for kind, count in of_kind.items():
        counts[kind, state] = counts.get((kind, state), 0) + count


def _fill(counts: Counts, states: tuple[str, ...]) -> None:
    for kind in {kind for kind, _ in counts}:
        for state in states:
            counts.setdefault((kind, state), 0)


def _placed(session: Session) -> dict[tuple[str, str], set[str]]:
    """Returns the agents of every placed launch that has not ended, by its id and state."""
    query = (
        select(Launch.id, Launch.state, Assignment.agent_id)
        .join(Assignment, Assignment.launch_id == Launch.id)
        .where(Launch.state.in_(LAUNCH_ACTIVE), Launch.placed_at.is_not(None))
        .where(Assignment.attempt == Launch.attempt)
    )
    agents: dict[tuple[str, str], set[str]] = {}
    for launch, state, agent in session.execute(query):
        agents.setdefault((launch, state), set()).add(agent)
    return agents
