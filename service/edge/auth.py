"""Authentication: keys in `Authorization: Bearer`, and what is allowed where no keys are needed.

With logins, the provider's access tokens and the page's signed-in users are accepted as well.

Each request is counted: by its key, or by its client's address if it has no known key. A request
with an unknown key is counted before the database is asked for the key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import OrderedDict
from math import ceil
from time import monotonic
from typing import Protocol

from service.base.pools import Pools
from service.base.problems import Problem
from service.base.recent import remember
from service.base.settings import Settings, is_loopback
from service.base.shares import lane_of_address
from service.edge.call import Caller
from service.edge.key_uses import KeyUses
from service.edge.metrics import LimitMetrics
from service.edge.shared_rate import RateLimit
from service.edge.token_server import TokenServer
from service.login.signed_in import TENANT_HEADER
from service.store.database import Database
from service.store.keys import Principal, any_keys, is_key, local_principal, principal_of

MAX_REMEMBERED = 10_000
LONGEST_HOST = 253
"""Characters of a host's name (RFC 1035, section 2.3.4, without the root)."""


class Tokens(Protocol):
    """Accepts access tokens (service/login/logins.py)."""

    def takes(self, text: str) -> bool: ...

    async def principal_of(self, token: str, tenant: str | None, who: str) -> Principal: ...


class Gate:
    """Admits requests. What the database says about a key is cached for `auth_cache_s`.

    Without keys the service is open to this host alone. A web page in this host's browser is this
    host too, so an open service answers only to its own name (DNS rebinding) and accepts no
    changes from another origin (cross-site requests).
    """

    def __init__(
        self, settings: Settings, database: Database, metrics: LimitMetrics, pools: Pools
    ) -> None:
        self._settings = settings
        self._database = database
        self.uses = KeyUses(database)
        self._metrics = metrics
        url = settings.redis_url
        self._server = TokenServer(url, f"{settings.queue}:rate") if url else None
        self._keys = self._limit("key", settings.rate_per_s, settings.rate_burst)
        self._strangers = self._limit(
            "address", settings.anonymous_rate_per_s, settings.anonymous_burst
        )
        self._enrolments = self._limit(
            "enrolment",
            settings.enrol_rate_per_s,
            max(10, round(10 * settings.enrol_rate_per_s)),
        )
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._open: tuple[float, Principal | None] = (0.0, None)
        self.logins: Tokens | None = None
        # The caller is not known yet: each address has a share of these threads.
        self._lookups = pools.lookups
        self._times = pools.times
        self._hosts = {h.strip().lower() for h in settings.allowed_hosts.split(",") if h.strip()}

    async def admit(self, caller: Caller, scope: str) -> Principal:
        """Returns the principal. Raises `Problem` beyond its rate or without the scope.

        A tenant whose calls take more than their share of the time waits here, before anything is
        done for it, refusals included.
        """
        principal = await self._principal(caller)
        caller.known(principal)
        await self._count(principal, caller)
        if caller.tenant is not None and caller.tenant != principal.tenant:
            detail = f"this caller's tenant is not {caller.tenant[:100]!r}"
            raise Problem("forbidden", detail, field=TENANT_HEADER)
        if not principal.may(scope):
            raise Problem("forbidden", f"the key does not have the scope {scope}", scope=scope)
        self.uses.note(principal.key_id)
        return principal

    async def admit_anyone(self, caller: Caller) -> None:
        """Counts a request that needs no key. Raises `Problem` beyond the rate."""
        principal = self.remembered(caller)
        if principal is None:
            await self.count_stranger(caller)
        else:
            await self._count(principal, caller)

    async def admit_enrolment(self, caller: Caller) -> None:
        """Counts an attempt to enrol. Raises `Problem` beyond the rate of its address."""
        wait_s = await self._enrolments.take(caller.address)
        self._require(self._enrolments, wait_s, "too many enrolments from this address")

    def remembered(self, caller: Caller, *, late_s: float = 0.0) -> Principal | None:
        """Returns the principal if it is known without asking the database, else None.

        What is remembered may be out of date by at most `late_s`.
        """
        principal = self._remembered(caller, late_s)
        if principal is None or caller.tenant in (None, principal.tenant):
            return principal
        return None

    def _remembered(self, caller: Caller, late_s: float) -> Principal | None:
        if (person := caller.signed_in) is not None:
            return person.principal
        header = caller.authorization
        if header is not None:
            known = self._known.get(_digest(header.partition(" ")[2]))
            return known[1] if known is not None and known[0] + late_s > monotonic() else None
        opened = self._opened(late_s)
        own = isinstance(opened, Principal) and self._is_own(caller.host)
        return opened if own and isinstance(opened, Principal) else None

    async def count_stranger(self, caller: Caller) -> None:
        """Counts a request of an unknown caller. Raises `Problem` beyond the address's rate."""
        wait_s = await self._strangers.take(caller.address)
        self._require(self._strangers, wait_s, "too many requests without a key from this address")

    def uncount_stranger(self, caller: Caller) -> None:
        """Takes back what `count_stranger` counted: the caller turned out to be known."""
        self._strangers.give_back(caller.address)

    async def spends(self, principal: Principal, caller: Caller) -> bool:
        """Takes a token of the principal's rate. Returns False if there is none.

        Waits for the broker only when this process has no leased token left.
        """
        self.uses.note(principal.key_id)
        counted = _counted(principal, caller)
        if self._keys.take_leased(counted, principal.rate_per_s):
            return True
        return await self._keys.take(counted, principal.rate_per_s) <= 0

    async def close(self) -> None:
        """Closes connections."""
        if self._server is not None:
            await self._server.close()

    def _limit(self, name: str, rate_per_s: float, burst: int) -> RateLimit:
        return RateLimit(name, rate_per_s, burst, self._server, self._metrics.alone)

    async def _count(self, principal: Principal, caller: Caller) -> None:
        await self._times.turn(principal.lane)
        wait_s = await self._keys.take(_counted(principal, caller), principal.rate_per_s)
        self._require(self._keys, wait_s, "too many requests with this key")

    def _require(self, limit: RateLimit, wait_s: float, detail: str) -> None:
        if wait_s > 0:
            self._metrics.limited.labels(limit.name).inc()
            headers = {"Retry-After": str(max(1, ceil(wait_s)))}
            raise Problem("rate-limited", detail, headers=headers)

    async def _principal(self, caller: Caller) -> Principal:
        if (person := caller.signed_in) is not None:
            return person.principal
        header = caller.authorization
        if header is None:
            return await self._keyless(caller)
        key = _presented(header, caller)
        if key and self.logins is not None and self.logins.takes(key):
            await self.count_stranger(caller)
            token_principal = await self.logins.principal_of(key, caller.tenant, caller.address)
            self.uncount_stranger(caller)
            return token_principal
        digest = _digest(key)
        known = self._known.get(digest)
        if known is not None and known[0] > monotonic():
            return known[1]
        # A key that was in force is checked again whatever other callers do from its address.
        if known is None:
            await self.count_stranger(caller)
        if not key:
            raise _unauthenticated("the Authorization header is not `Bearer KEY`")
        asked = monotonic()
        principal = None
        if is_key(key):
            # One that was in force needs no thread of its address's: strangers may hold them all.
            lane = lane_of_address(caller.address) if known is None else known[1].lane
            principal = await self._lookups.run(lane, self._look_up, key)
        if principal is None:
            self._known.pop(digest, None)
            raise _unauthenticated("the key is not in force")
        if known is None:
            self.uncount_stranger(caller)
        until = asked + self._believed_s(principal)
        remember(self._known, digest, (until, principal), MAX_REMEMBERED)
        return principal

    async def _keyless(self, caller: Caller) -> Principal:
        opened = self._opened()
        if opened is _UNKNOWN:
            lane = lane_of_address(caller.address)
            opened = await self._lookups.run(lane, self._check_whether_open)
        if not isinstance(opened, Principal):
            await self.count_stranger(caller)
            raise _unauthenticated("no key was given")
        self._require_own_page(caller)
        return opened

    def _believed_s(self, principal: Principal) -> float:
        """Returns how long a lookup stays valid; never beyond the key's expiry."""
        most_s = self._settings.auth_cache_s
        return most_s if principal.left_s is None else min(most_s, principal.left_s)

    def _look_up(self, text: str) -> Principal | None:
        with self._database.read() as session:
            return principal_of(session, text)

    def _opened(self, late_s: float = 0.0) -> Principal | object | None:
        settings = self._settings
        if not settings.loopback or settings.auth == "required" or settings.oidc_issuer:
            return None
        until, principal = self._open
        return principal if until + late_s > monotonic() else _UNKNOWN

    def _check_whether_open(self) -> Principal | None:
        with self._database.read() as session:
            principal = None if any_keys(session) else local_principal(session)
        self._open = (monotonic() + self._settings.auth_cache_s, principal)
        return principal

    def _require_own_page(self, caller: Caller) -> None:
        host = caller.host
        if not self._is_own(host):
            raise Problem("foreign-origin", f"this service is not {host[:100]!r}")
        origin = caller.origin
        if origin is not None and caller.changes and origin.partition("://")[2] != host:
            raise Problem("foreign-origin", f"changes from {origin[:100]!r} are not accepted")

    def _is_own(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if len(name) > LONGEST_HOST:
            return False
        return is_loopback(name.lower()) or name.lower() in self._hosts


_UNKNOWN = object()


def _counted(principal: Principal, caller: Caller) -> str:
    """Returns the subject that a request counts against: its key, else its client's address."""
    return principal.key_id or lane_of_address(caller.address)


def _presented(header: str, caller: Caller) -> str:
    """Returns the key of an Authorization header; empty for a header without one."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() == "bearer":
        return text.strip()
    if scheme.lower() == "basic" and caller.takes_basic:
        return _password(text) or ""
    return ""


def _digest(text: str) -> bytes:
    """Returns the digest that a key is remembered by; the key itself is not kept."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _password(credentials: str) -> str | None:
    """Returns the password of Basic credentials (RFC 7617); None when they are not readable."""
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return text.partition(":")[2]


def _unauthenticated(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers={"WWW-Authenticate": "Bearer"})
