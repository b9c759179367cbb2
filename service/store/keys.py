"""Keys and tenants. A key is `sw_ID_SECRET`; only a hash of the secret is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any, get_args

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from service.base.problems import Problem
from service.base.settings import Settings
from service.base.shares import OPERATORS
from service.store.attained import WEIGHTS
from service.store.database import clock, now
from service.store.insert import insert_new
from service.store.tables import Key, Tenant
from shardwise.documents.administration import Scope
from shardwise.errors import BadInput, NotFound

SCOPES = get_args(Scope)
OPEN_SCOPES = frozenset(SCOPES) - {"operator"}
"""Scopes of all callers where no keys are needed: all of one tenant, nothing of the others."""

LOCAL_TENANT = "local"
"""The tenant that owns everything where no keys are needed."""

_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
_KEY = re.compile(r"^sw_([0-9a-f]{16})_([0-9A-Za-z_-]{43})$")
LIMITS = (
    "max_keys",
    "max_queued",
    "max_running",
    "max_graphs",
    "max_stored_bytes",
    "max_profiles",
    "max_profile_bytes",
    "max_stored_jobs",
    "max_result_bytes",
    "max_bytes_per_day",
    "max_watched",
    "max_webhooks",
    "max_launches",
    "max_stored_launches",
    "max_launch_bytes",
    "max_runs",
    "max_run_bytes",
    "solve_time_s",
    "solve_memory_bytes",
    "weight",
)
"""Limits that can be set per tenant: settings, and its weight among tenants."""

MAX_LIMIT_VALUE = 2**53
MAX_EXPIRES_S = 10 * 366 * 86400.0
KINDS = ("key", "open")
"""How a principal came in: with a key, or to a service on which no keys are needed."""


@dataclass(frozen=True)
class Principal:
    """The caller: a tenant through a key with scopes; `key_id` is None where no keys are needed.

    `left_s` is for how many seconds it was still valid when it was looked up; None: no end.
    `key_expires_at` is when its key expires, which bounds the keys that it may create.
    """

    tenant: str
    key_id: str | None
    scopes: frozenset[str]
    rate_per_s: float | None
    limits: dict[str, Any]
    agent_id: str | None = None
    kind: str = "key"
    name: str = ""
    left_s: float | None = None
    key_expires_at: float | None = None
    actor: str | None = None
    """The person, for the audit, if one signed in; a key is named by its id."""

    def may(self, scope: str) -> bool:
        """Returns whether a scope is held: an operator holds all, an admin all but `operator`."""
        if scope in self.scopes or "operator" in self.scopes:
            return True
        return "admin" in self.scopes and scope != "operator"

    @property
    def lane(self) -> str:
        """The lane of its calls in shared resources: its tenant, or operators."""
        return OPERATORS if self.may("operator") else self.tenant


def is_tenant_name(text: str) -> bool:
    """Returns True for what may be a tenant's name."""
    return _NAME.fullmatch(text) is not None


def make_tenant(session: Session, tenant: str) -> None:
    """Creates a tenant unless it exists.

    Raises BadInput for an ill-formed name and a problem `deleting` for one that is being deleted.
    """
    if not _NAME.fullmatch(tenant):
        raise BadInput(
            f"got {tenant[:80]!r}",
            field="tenant",
            expected="lower-case letters, digits, '.', '_', '-'",
        )
    if not insert_new(session, Tenant, id=tenant, created_at=now(), limits={}):
        require_tenant(session, tenant)


def require_tenant(session: Session, tenant: str) -> None:
    """Raises a problem `deleting` unless the tenant exists and is not being deleted."""
    there = select(Tenant.id).where(Tenant.id == tenant, Tenant.deleting_at.is_(None))
    if session.scalar(there) is None:
        raise Problem("deleting", "the tenant is being deleted")


def require_open(session: Session, principal: Principal) -> None:
    """Raises a problem `deleting` unless the principal's tenant accepts changes.

    A key's tenant exists, and is not created again after its deletion; the tenant of a service
    without keys is created by its first change.
    """
    if principal.kind == "open":
        make_tenant(session, principal.tenant)
    else:
        require_tenant(session, principal.tenant)


def create_key(
    session: Session,
    tenant: str,
    scopes: tuple[str, ...],
    name: str = "",
    rate_per_s: float | None = None,
    agent_id: str | None = None,
    expires_at: float | None = None,
    **origin: str | None,
) -> str:
    """Creates a key, and its tenant if needed. Returns the key, which is shown only now.

    With `agent_id` it is that agent's, created by enrolment (store/enrolment.py). `expires_at` is
    in seconds since 1970 by the database's clock; `origin` are the row's `created_by`, `replaces`
    and `once_hash`. Raises BadInput for an unknown scope, none at all, or an expiry out of range.
    """
    for scope in scopes:
        if scope not in SCOPES:
            raise BadInput(f"unknown scope {scope!r}", field="scope", expected=", ".join(SCOPES))
    if not scopes:
        raise BadInput("no scopes", field="scope", expected=", ".join(SCOPES))
    make_tenant(session, tenant)
    if expires_at is not None and not 0 < expires_at - clock(session) <= MAX_EXPIRES_S:
        raise BadInput(
            "not between now and ten years from now", field="expires_at", expected="a later moment"
        )
    key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    session.add(
        Key(
            id=key_id,
            tenant_id=tenant,
            name=name[:200],
            secret_hash=_hash(secret),
            scopes=",".join(sorted(set(scopes))),
            rate_per_s=rate_per_s,
            created_at=now(),
            agent_id=agent_id,
            expires_at=expires_at,
            **origin,
        )
    )
    session.flush()
    return f"sw_{key_id}_{secret}"


def in_force() -> ColumnElement[bool]:
    """Returns the condition of a key that is neither revoked nor expired."""
    return and_(Key.revoked_at.is_(None), or_(Key.expires_at.is_(None), Key.expires_at > now()))


def list_keys(session: Session) -> list[Key]:
    """Returns all keys, oldest first."""
    return list(session.scalars(select(Key).order_by(Key.created_at, Key.id)))


def revoke_key(session: Session, key_id: str) -> str:
    """Revokes a key. Returns its tenant.

    Raises NotFound for a key that does not exist or is no longer in force.
    """
    revoked = update(Key).where(Key.id == key_id, in_force()).values(revoked_at=now())
    tenant: str | None = session.scalar(revoked.returning(Key.tenant_id))
    if tenant is None:
        raise NotFound(f"there is no key {key_id} in force")
    return tenant


def set_limit(session: Session, tenant: str, name: str, value: float | None) -> None:
    """Gives a tenant its own value of a setting, or removes it (None).

    Raises BadInput for an unknown name or a value out of range.
    """
    if name not in LIMITS:
        raise BadInput(f"unknown limit {name[:80]!r}", field="limit", expected=", ".join(LIMITS))
    if value is not None and not 0 <= value <= MAX_LIMIT_VALUE:
        raise BadInput(f"got {value:g}", field=name, expected="a number from 0 to 2^53")
    least, most = WEIGHTS
    if name == "weight" and value is not None and not least <= value <= most:
        raise BadInput(f"got {value:g}", field="weight", expected=f"{least:g} to {most:g}")
    make_tenant(session, tenant)
    row = session.get_one(Tenant, tenant, with_for_update=True)
    limits = {key: old for key, old in row.limits.items() if key != name}
    row.limits = limits if value is None else {**limits, name: value}


def limits_in_force(settings: Settings, own: dict[str, Any]) -> dict[str, Any]:
    """Returns every limit of a tenant that has these values of its own."""
    usual = {name: getattr(settings, name) for name in LIMITS if name != "weight"}
    return {**usual, "weight": 1.0, **own}


def any_keys(session: Session) -> bool:
    """Returns whether a key was ever created; then keys are needed, even if all are revoked.

    Agents' own keys do not count: an agent of an open service has one, and it stays open.
    """
    return bool(session.scalar(select(func.count()).where(Key.agent_id.is_(None))))


def keys_in_force(session: Session) -> int:
    """Returns how many keys are neither revoked nor expired, without agents' own."""
    usable = (in_force(), Key.agent_id.is_(None))
    return int(session.scalar(select(func.count()).where(*usable)) or 0)


def expire_keys(session: Session) -> int:
    """Revokes expired keys, for releases that know of no expiry. Returns their number."""
    past = (Key.revoked_at.is_(None), Key.expires_at <= now())
    gone = update(Key).where(*past).values(revoked_at=Key.expires_at).returning(Key.id)
    return len(session.scalars(gone.execution_options(synchronize_session=False)).all())


def is_key(text: str) -> bool:
    """Returns True if a text has the form of a key."""
    return _KEY.match(text) is not None


def principal_of(session: Session, text: str) -> Principal | None:
    """Returns the key's principal, or None if it is unknown, expired or revoked."""
    match = _KEY.match(text)
    if match is None:
        return None
    row = session.execute(
        select(Key, Tenant.limits, Key.expires_at - now())
        .join(Tenant, Tenant.id == Key.tenant_id)
        .where(Key.id == match[1], in_force())
    ).first()
    # The hash is compared even when there is no such key: both take the same time.
    stored = row[0].secret_hash if row else "0" * 64
    if not hmac.compare_digest(stored, _hash(match[2])) or row is None:
        return None
    key = row[0]
    return Principal(
        key.tenant_id,
        key.id,
        frozenset(key.scopes.split(",")),
        key.rate_per_s,
        row[1],
        key.agent_id,
        name=key.name,
        left_s=row[2],
        key_expires_at=key.expires_at,
    )


def local_principal(session: Session) -> Principal:
    """Returns the principal where no keys are needed: it may do all but an operator's calls."""
    row = session.get(Tenant, LOCAL_TENANT)
    limits = row.limits if row else {}
    return Principal(LOCAL_TENANT, None, OPEN_SCOPES, None, limits, kind="open")


def _hash(secret: str) -> str:
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()
