"""Enrolment: each use of a token becomes an agent with a key of its own. Only hashes are stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session

from service.base.problems import Problem
from service.store.database import now
from service.store.ids import new_id
from service.store.keys import create_key, make_tenant, revoke_key
from service.store.launch_tables import Agent, Enrolment
from service.store.tenants import lock_tenant
from shardwise.errors import BadInput, NotFound

MAX_EXPIRES_S = 30 * 86400.0
MAX_USES = 1000
_TOKEN = re.compile(r"^swe_[0-9A-Za-z_-]{43}\Z")


@dataclass(frozen=True)
class Enrolled:
    """A new agent and its key, which is shown only this once."""

    agent_id: str
    key: str
    tenant: str


@dataclass(frozen=True)
class Unenrolled:
    """Why a token was refused: only for the audit, with the tenant if there is one."""

    why: str
    tenant: str
    token_name: str
    token_hash: str = ""


def make_token(
    session: Session,
    tenant: str,
    name: str,
    expires_s: float,
    once: str | None = None,
    uses: int = 1,
) -> tuple[str, float]:
    """Returns a new token for `uses` agents and when it expires.

    `once` is an Idempotency-Key, whose earlier token the new one replaces.

    The token itself is not kept, so a repeat cannot get the same one; it gets an equivalent one,
    and the first, if it was not used up, becomes invalid.
    """
    if not 1.0 <= expires_s <= MAX_EXPIRES_S:
        raise BadInput(f"got {expires_s:g}", field="expires_s", expected=f"1 to {MAX_EXPIRES_S:g}")
    if not 1 <= uses <= MAX_USES:
        raise BadInput(f"got {uses}", field="uses", expected=f"1 to {MAX_USES}")
    make_tenant(session, tenant)
    # Repeats at once take turns: each would leave a token that the others do not see.
    lock_tenant(session, tenant)
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
        uses=uses,
        used=0,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return token, row.expires_at


def refused_token(session: Session, token: str, *, repeated: bool) -> Unenrolled | None:
    """Returns why a token cannot enrol, None if it can; takes no use and no lock.

    A token without uses left passes if the call may be a repeat (`repeated`: it has an
    Idempotency-Key) and one of its agents has yet to send its first heartbeat: `enrol` decides.
    """
    if not looks_like_token(token):
        return Unenrolled("unknown", "", "")
    enrolment = session.execute(
        select(Enrolment, Enrolment.expires_at <= now()).where(Enrolment.token_hash == _hash(token))
    ).first()
    if enrolment is None:
        return Unenrolled("unknown", "", "")
    row, expired = enrolment
    if row.used_at is None and not expired:
        return None
    if repeated and _unheard(session, row):
        return None
    why = "expired" if row.used_at is None else "replayed"
    return Unenrolled(why, row.tenant_id, row.name, row.token_hash)


def looks_like_token(text: str) -> bool:
    """Returns whether a text has the form of an enrolment token."""
    return _TOKEN.match(text) is not None


def _unheard(session: Session, row: Enrolment) -> bool:
    """Returns whether an agent of this token has sent no heartbeat yet."""
    of_token = Agent.token_hash == row.token_hash
    if row.agent_id is not None:
        of_token = or_(of_token, Agent.id == row.agent_id)
    unheard = select(Agent.id).where(of_token, Agent.boot_id == "").limit(1)
    return session.scalar(unheard) is not None


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
    """Takes one use of a token. Returns an agent with a key bound to it, or the reason against it.

    Of two calls that take the last use at once, one gets an agent. A repeat with the same `once`
    (Idempotency-Key and body) takes no further use: before the agent's first heartbeat it gets a
    new key of the same agent, since its first answer was lost. Raises a problem `quota` if the
    tenant has too many agents.
    """
    if not looks_like_token(token):
        return Unenrolled("unknown", "", "")
    mine = Enrolment.token_hash == _hash(token)
    # The lock makes calls with the same token take turns.
    enrolment = session.execute(
        select(Enrolment, Enrolment.expires_at <= now()).where(mine).with_for_update()
    ).first()
    if enrolment is None:
        return Unenrolled("unknown", "", "")
    row, expired = enrolment
    once_hash = None if once is None else _hash(once)
    agent = _agent_of(session, row, once_hash)
    if agent is not None:
        return _enrol_again(session, row, agent)
    if row.used_at is not None:
        return _unenrolled("replayed", row)
    if expired:
        return _unenrolled("expired", row)
    tenant = row.tenant_id
    count = session.scalar(select(func.count()).where(Agent.tenant_id == tenant)) or 0
    if count >= max_agents:
        raise Problem("quota", f"{count} agents are enrolled; delete some")
    agent_id, name = new_id("agent"), name or row.name
    row.agent_id, row.once_hash = agent_id, once_hash
    row.used += 1
    if row.used >= row.uses:
        row.used_at = now()
    key = create_key(session, tenant, ("agent",), f"agent {name}", agent_id=agent_id)
    session.add(
        Agent(
            id=agent_id,
            tenant_id=tenant,
            name=name[:200],
            key_id=key.split("_")[1],
            token_hash=row.token_hash,
            once_hash=once_hash,
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


def _agent_of(session: Session, row: Enrolment, once_hash: str | None) -> Agent | None:
    """Returns the agent that the same call has enrolled before."""
    if once_hash is None:
        return None
    if once_hash == row.once_hash and row.agent_id is not None:
        return session.get(Agent, row.agent_id)
    return session.scalar(
        select(Agent).where(Agent.token_hash == row.token_hash, Agent.once_hash == once_hash)
    )


def _enrol_again(session: Session, row: Enrolment, agent: Agent) -> Enrolled | Unenrolled:
    """Returns a new key instead of the one that did not arrive."""
    if agent.boot_id:
        return _unenrolled("replayed", row)
    try:
        revoke_key(session, agent.key_id)
    except NotFound:
        return _unenrolled("replayed", row)
    key = create_key(session, row.tenant_id, ("agent",), f"agent {agent.name}", agent_id=agent.id)
    agent.key_id = key.split("_")[1]
    return Enrolled(agent.id, key, row.tenant_id)


def _unenrolled(why: str, row: Enrolment) -> Unenrolled:
    return Unenrolled(why, row.tenant_id, row.name, row.token_hash)


def _hash(text: str) -> str:
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(text.encode()).hexdigest()
