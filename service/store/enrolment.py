"""Enrolment: a one-time token becomes an agent with a key of its own. Only hashes are stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.problems import Problem
from service.store.database import now
from service.store.ids import new_id
from service.store.keys import create_key, make_tenant, revoke_key
from service.store.launch_tables import Agent, Enrolment
from shardwise.errors import BadInput, NotFound

MAX_EXPIRES_S = 30 * 86400.0
_TOKEN = re.compile(r"^swe_[0-9A-Za-z_-]{43}$")


@dataclass(frozen=True)
class Enrolled:
    """An agent that was made, and its key: the only time that it is seen."""

    agent_id: str
    key: str
    tenant: str


@dataclass(frozen=True)
class Unenrolled:
    """Why a token was refused: for the audit alone, with the tenant if there is one."""

    why: str
    tenant: str
    token_name: str


def make_token(
    session: Session, tenant: str, name: str, expires_s: float, once: str | None = None
) -> tuple[str, float]:
    """A new token and when it expires. `once`: an Idempotency-Key, whose token it replaces.

    The token itself is not kept, so that a repeat cannot get the same; it gets one that is as good,
    and the first, if it was not used, is worthless.
    """
    if not 1.0 <= expires_s <= MAX_EXPIRES_S:
        raise BadInput(f"{expires_s:g}", field="expires_s", expected=f"1 to {MAX_EXPIRES_S:g}")
    make_tenant(session, tenant)
    once_hash = None if once is None else _hash(once)
    if once_hash is not None:
        session.execute(
            delete(Enrolment).where(
                Enrolment.tenant_id == tenant,
                Enrolment.made_once_hash == once_hash,
                Enrolment.used_at.is_(None),
            )
        )
    token = f"swe_{secrets.token_urlsafe(32)}"
    row = Enrolment(
        token_hash=_hash(token),
        tenant_id=tenant,
        name=name[:200],
        created_at=now(),
        expires_at=now() + expires_s,
        made_once_hash=once_hash,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return token, row.expires_at


def enrol(
    session: Session,
    token: str,
    once: str | None,
    *,
    name: str,
    inventory: dict[str, Any],
    lease_s: float,
    max_agents: int,
) -> Enrolled | Unenrolled:
    """Use a token up: an agent with a key bound to it, or why not.

    Of two who use a token at once one gets an agent. A repeat with the same `once`
    (Idempotency-Key and body) before the agent's first heartbeat gets a new key of the same agent:
    its first answer was lost. A problem `quota` when the tenant has too many agents.
    """
    if not _TOKEN.match(token):
        return Unenrolled("unknown", "", "")
    mine = Enrolment.token_hash == _hash(token)
    once_hash = None if once is None else _hash(once)
    agent_id = new_id("agent")
    used = session.execute(
        update(Enrolment)
        .where(mine, Enrolment.used_at.is_(None), Enrolment.expires_at > now())
        .values(used_at=now(), agent_id=agent_id, once_hash=once_hash)
        .returning(Enrolment.tenant_id, Enrolment.name)
    ).first()
    if used is None:
        return _again(session, mine, once_hash)
    tenant, token_name = used
    count = session.scalar(select(func.count()).where(Agent.tenant_id == tenant)) or 0
    if count >= max_agents:
        raise Problem("quota", f"{count} agents are enrolled; delete some")
    key = create_key(session, tenant, ("agent",), f"agent {name or token_name}", agent_id=agent_id)
    session.add(
        Agent(
            id=agent_id,
            tenant_id=tenant,
            name=(name or token_name)[:200],
            key_id=key.split("_")[1],
            created_at=now(),
            seen_at=now(),
            lease_expires_at=now() + lease_s,
            state="live",
            inventory=inventory,
            slots=int(inventory["slots"]),
        )
    )
    session.flush()
    return Enrolled(agent_id, key, tenant)


def _again(session: Session, mine: Any, once_hash: str | None) -> Enrolled | Unenrolled:
    row = session.scalar(select(Enrolment).where(mine).with_for_update())
    if row is None:
        return Unenrolled("unknown", "", "")
    if row.used_at is None:
        return Unenrolled("expired", row.tenant_id, row.name)
    agent = None if row.agent_id is None else session.get(Agent, row.agent_id)
    same = once_hash is not None and once_hash == row.once_hash
    if agent is None or not same or agent.boot_id:
        return Unenrolled("replayed", row.tenant_id, row.name)
    try:
        revoke_key(session, agent.key_id)
    except NotFound:
        return Unenrolled("replayed", row.tenant_id, row.name)
    key = create_key(session, row.tenant_id, ("agent",), f"agent {agent.name}", agent_id=agent.id)
    agent.key_id = key.split("_")[1]
    return Enrolled(agent.id, key, row.tenant_id)


def _hash(text: str) -> str:
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(text.encode()).hexdigest()
