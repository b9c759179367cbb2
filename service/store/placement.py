"""Placement: a queued launch gets all its agents at once, or none and the reason.

The tenant's row is locked, so that two processes never give away one slot twice. Launches are tried
oldest first; a younger one that fits overtakes an older one that does not.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.base.settings import port_range
from service.cluster.gangs import ASSIGNMENT_ACTIVE, LAUNCH_ACTIVE
from service.cluster.kinds import Host, slots_of_kind
from service.cluster.launch_request import BUILT_IN
from service.store.database import now
from service.store.gangs import MAX_REASON, Rules, launches_of
from service.store.ids import new_id
from service.store.launch_tables import Agent, Assignment, Launch
from service.store.tenants import lock_tenant

MOST_AT_ONCE = 500
"""Queued launches that one pass tries."""


@dataclass
class Node:
    """An agent as placement sees it."""

    agent: Agent
    free: int
    silent: bool


def waiting_tenants(session: Session) -> list[str]:
    """Returns the tenants that have launches to place."""
    return list(session.scalars(select(Launch.tenant_id).where(*_unplaced()).distinct()))


def place(session: Session, tenant: str, rules: Rules) -> list[str]:
    """Places the tenant's launches. Returns the agents that have new work."""
    lock_tenant(session, tenant)
    queued = session.scalars(
        select(Launch)
        .where(Launch.tenant_id == tenant, *_unplaced())
        .order_by(Launch.created_at, Launch.id)
        .limit(MOST_AT_ONCE)
    ).all()
    if not queued:
        return []
    active = Assignment.state.in_(ASSIGNMENT_ACTIVE)
    stopping = set(launches_of(session, active, Assignment.launch_id.in_([q.id for q in queued])))
    nodes = _nodes(session, tenant)
    agents: list[str] = []
    for launch in queued:
        if launch.id in stopping:
            chosen: list[Node] = []
            reason = "its last placement is being stopped"
        else:
            chosen, reason = _choose(launch, nodes)
        if chosen:
            if _give(session, launch, chosen, rules):
                agents += [node.agent.id for node in chosen]
        elif launch.reason != reason:
            session.execute(
                update(Launch).where(Launch.id == launch.id, *_unplaced()).values(reason=reason)
            )
    return agents


def busy_slots(session: Session, agent_ids: list[str]) -> dict[str, int]:
    """Returns the slots that assignments hold, by agent."""
    query = select(Assignment.agent_id, func.sum(Assignment.slots)).where(
        Assignment.agent_id.in_(agent_ids), Assignment.state.in_(ASSIGNMENT_ACTIVE)
    )
    return {
        name: int(count) for name, count in session.execute(query.group_by(Assignment.agent_id))
    }


def _unplaced() -> tuple[Any, ...]:
    return Launch.state == "queued", Launch.placed_at.is_(None), Launch.ending.is_(None)


def _nodes(session: Session, tenant: str) -> dict[str, Node]:
    silent = (Agent.state != "live") | (Agent.lease_expires_at < now())
    rows = session.execute(select(Agent, silent).where(Agent.tenant_id == tenant)).all()
    busy = busy_slots(session, [agent.id for agent, _ in rows])
    return {
        agent.id: Node(agent, agent.slots - busy.get(agent.id, 0), bool(lost))
        for agent, lost in rows
    }


def _choose(launch: Launch, nodes: dict[str, Node]) -> tuple[list[Node], str]:
    """Returns the launch's agents, rank 0 first; or none, and why."""
    asked = launch.request["agents"]
    named = isinstance(asked, list)
    wanted = len(asked) if named else int(asked)
    missing = [agent_id for agent_id in asked if agent_id not in nodes] if named else []
    if missing:
        return [], f"agent {missing[0]} is not enrolled any more"
    among = [nodes[agent_id] for agent_id in asked] if named else list(nodes.values())
    if hosts := hosts_asked(launch):
        return _of_kinds(launch, hosts, among, named)
    against = {node.agent.id: _against(launch, node) for node in among}
    fit = [node for node in among if against[node.agent.id] is None]
    if len(fit) >= wanted:
        if named:
            return fit, ""
        tightest = sorted(fit, key=lambda node: (node.free, node.agent.name, node.agent.id))
        return sorted(tightest[:wanted], key=lambda node: (node.agent.name, node.agent.id)), ""
    why = Counter(text for text in against.values() if text is not None)
    listed = ", ".join(f"{count} {text}" for text, count in sorted(why.items()))
    ranks = launch.request["ranks_per_agent"]
    agents = "agents" if wanted > 1 else "agent"
    slots = "slots" if ranks > 1 else "slot"
    need = f"needs {wanted} {agents} with {ranks} free {slots} each"
    have = f"{len(fit)} of {len(among)} can" + (f" ({listed})" if listed else "")
    return [], f"{need}: {have}"[:MAX_REASON]


def hosts_asked(launch: Launch) -> list[Host]:
    """Returns the hosts of a launch on several kinds, in the order of their ranks; else none."""
    return [Host(host["kind"], int(host["ranks"])) for host in launch.request.get("hosts") or ()]


def _of_kinds(
    launch: Launch, hosts: list[Host], among: list[Node], named: bool
) -> tuple[list[Node], str]:
    """Returns an agent for each host of a plan on several kinds; or none, and why.

    Where agents are not named, a host gets the one with the fewest free slots that are enough;
    hosts with fewer ranks are served first, so that a small one takes no large one's place.
    """
    chosen: dict[int, Node] = {}
    for number in sorted(range(len(hosts)), key=lambda n: (hosts[n].ranks, n)):
        host = hosts[number]
        left = [among[number]] if named else [n for n in among if n not in chosen.values()]
        against = [(_against(launch, node, host), node) for node in left]
        fit = [node for reason, node in against if reason is None]
        if not fit:
            why = Counter(reason for reason, _ in against)
            listed = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
            need = f"node {number} needs an agent with {host.ranks} free slots of {host.kind}"
            return [], f"{need}: none can ({listed or 'no other agents'})"[:MAX_REASON]
        chosen[number] = min(fit, key=lambda node: (node.free, node.agent.name, node.agent.id))
    return [chosen[number] for number in range(len(hosts))], ""


def _against(launch: Launch, node: Node, host: Host | None = None) -> str | None:
    """Returns why an agent cannot have a part of this launch, or be one `host` of it; None when it
    can."""
    agent, request = node.agent, launch.request
    if node.silent:
        return "lost"
    if agent.drained or agent.draining:
        return "drained"
    entry = request["entry_point"]
    known = {point["name"] for point in agent.inventory.get("entry_points", ())}
    if entry not in BUILT_IN and entry not in known:
        return "without the entry point"
    ranks = host.ranks if host else int(request["ranks_per_agent"])
    if host and slots_of_kind(agent.inventory, agent.slots, host.kind) < ranks:
        return "of another kind, or with too few devices of it"
    kind = request.get("device_kind")
    if kind is not None and _devices(agent, kind) < ranks:
        return "without the devices"
    if agent.slots < ranks:
        return "too small"
    return "busy" if node.free < ranks else None


def _devices(agent: Agent, kind: str) -> int:
    """Returns the number of devices of a kind that no other program uses; for `cpu`, the slots."""
    if kind.lower() == "cpu":
        return agent.slots
    return sum(
        kind.lower() in str(device["kind"]).lower() and not device.get("used_by_others", False)
        for device in agent.inventory.get("devices", ())
    )


def _give(session: Session, launch: Launch, chosen: list[Node], rules: Rules) -> bool:
    """Records the placement: all assignments, or (with the transaction) none.

    Returns False if the launch was stopped in the meantime.
    """
    hosts = hosts_asked(launch)
    ranks = [h.ranks for h in hosts] or [int(launch.request["ranks_per_agent"])] * len(chosen)
    host, port = _rendezvous(session, launch, chosen[0].agent, rules)
    placed = session.execute(
        update(Launch)
        .where(Launch.id == launch.id, Launch.attempt == launch.attempt, *_unplaced())
        .values(
            attempt=launch.attempt + 1,
            placed_at=now(),
            rendezvous_host=host,
            rendezvous_port=port,
            reason="placed; its agents have yet to claim it",
        )
        .returning(Launch.attempt)
        .execution_options(synchronize_session=False)
    ).first()
    if placed is None:
        return False
    for rank, node in enumerate(chosen):
        session.add(
            Assignment(
                id=new_id("asn"),
                tenant_id=launch.tenant_id,
                launch_id=launch.id,
                attempt=placed.attempt,
                agent_id=node.agent.id,
                agent_name=node.agent.name,
                node_rank=rank,
                slots=ranks[rank],
                state="waiting",
                created_at=now(),
            )
        )
        node.free -= ranks[rank]
    session.flush()
    return True


def _rendezvous(session: Session, launch: Launch, agent: Agent, rules: Rules) -> tuple[str, int]:
    """Returns where the ranks meet: the first agent's first address, a port that no launch uses
    there."""
    addresses = agent.inventory.get("addresses") or ["127.0.0.1"]
    host = str(addresses[0])
    if launch.request.get("master_port"):
        return host, int(launch.request["master_port"])
    low, high = port_range(str(agent.inventory.get("ports", ""))) or rules.ports
    used = set(
        session.scalars(
            select(Launch.rendezvous_port).where(
                Launch.rendezvous_host == host, Launch.state.in_(LAUNCH_ACTIVE)
            )
        )
    )
    free = [port for port in range(low, high + 1) if port not in used]
    # An exhausted range is not a reason to wait: only the host knows which ports are free.
    return host, secrets.choice(free or range(low, high + 1))
