"""Who asks: keys by `Authorization: Bearer`, and what is allowed where no keys are needed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from time import monotonic

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from service.problems import Problem
from service.rate import Buckets
from service.settings import Settings, is_loopback
from service.store.database import Database
from service.store.keys import Principal, any_keys, local_principal, principal_of

MAX_REMEMBERED = 10_000
BASIC_PATHS = ("/v1/skypilot/policy",)
"""Where a key may also be the password of Basic: SkyPilot knows of no header, only of a URL.

Nowhere else, since a browser that was once given such a URL would send it along unasked.
"""


class Gate:
    """Lets requests in. What the database says of a key is believed for `auth_cache_s`.

    Without keys the service is open to this host alone. A web page in this host's browser is this
    host too, so that an open service answers only to its own name (DNS rebinding) and takes no
    changes from another origin (cross-site requests).
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._buckets = Buckets(settings.rate_per_s, settings.rate_burst)
        self.enrolments = Buckets(
            settings.enrol_rate_per_s, max(10, round(10 * settings.enrol_rate_per_s))
        )
        self._known: dict[bytes, tuple[float, Principal]] = {}
        self._open: tuple[float, Principal | None] = (0.0, None)
        self._lock = threading.Lock()
        self._hosts = {h.strip().lower() for h in settings.allowed_hosts.split(",") if h.strip()}

    async def admit(self, request: Request, scope: str) -> Principal:
        """The principal, within its rate; a problem when it may not do this."""
        principal = await self._principal(request)
        if not principal.may(scope):
            raise Problem("forbidden", f"the key has not the scope {scope}", scope=scope)
        wait_s = self._take(principal)
        if wait_s > 0:
            raise Problem(
                "rate-limited",
                "the key asks more often than it may",
                headers={"Retry-After": str(max(1, round(wait_s)))},
            )
        return principal

    def remembered(self, request: Request) -> Principal | None:
        """The principal, if that needs no look at the database and nothing speaks against it."""
        header = request.headers.get("authorization")
        if header is not None:
            known = self._known.get(_digest(header.partition(" ")[2]))
            return known[1] if known is not None and known[0] > monotonic() else None
        opened = self._opened()
        own = isinstance(opened, Principal) and self._is_own(request.headers.get("host", ""))
        return opened if own and isinstance(opened, Principal) else None

    def has_token(self, principal: Principal) -> bool:
        """Take a token of its rate; False when there is none."""
        return self._take(principal) <= 0

    def _take(self, principal: Principal) -> float:
        """0, or the seconds until it may ask again; this host alone is not counted."""
        if principal.key_id is None:
            return 0.0
        return self._buckets.take(principal.key_id, principal.rate_per_s)

    async def _principal(self, request: Request) -> Principal:
        header = request.headers.get("authorization")
        if header is None:
            opened = self._opened()
            if opened is _UNKNOWN:
                opened = await run_in_threadpool(self._look_whether_open)
            if opened is None:
                raise _unauthenticated("no key was given")
            assert isinstance(opened, Principal)
            self._require_own_page(request)
            return opened
        scheme, _, text = header.partition(" ")
        key = text.strip() if scheme.lower() == "bearer" else None
        if scheme.lower() == "basic" and request.url.path in BASIC_PATHS:
            key = _password(text)
        if not key:
            raise _unauthenticated("the Authorization header is not `Bearer KEY`")
        digest = _digest(key)
        known = self._known.get(digest)
        if known is not None and known[0] > monotonic():
            return known[1]
        principal = await run_in_threadpool(self._look_up, key)
        if principal is None:
            raise _unauthenticated("the key is not in force")
        with self._lock:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[digest] = (monotonic() + self._settings.auth_cache_s, principal)
        return principal

    def _look_up(self, text: str) -> Principal | None:
        with self._database.read() as session:
            return principal_of(session, text)

    def _opened(self) -> Principal | object | None:
        if not self._settings.loopback or self._settings.auth == "required":
            return None
        until, principal = self._open
        return principal if until > monotonic() else _UNKNOWN

    def _look_whether_open(self) -> Principal | None:
        with self._database.read() as session:
            principal = None if any_keys(session) else local_principal(session)
        self._open = (monotonic() + self._settings.auth_cache_s, principal)
        return principal

    def _require_own_page(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if not self._is_own(host):
            raise Problem("foreign-origin", f"this service is not {host[:100]!r}")
        origin = request.headers.get("origin")
        if origin is None or request.method in ("GET", "HEAD"):
            return
        if origin.partition("://")[2] != host:
            raise Problem("foreign-origin", f"changes from {origin[:100]!r} are not taken")

    def _is_own(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return is_loopback(name.lower()) or name.lower() in self._hosts


_UNKNOWN = object()


def _digest(text: str) -> bytes:
    """What a key is remembered by: the key itself is not kept."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _password(credentials: str) -> str | None:
    """The password of Basic credentials (RFC 7617); None when they are not readable."""
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return text.partition(":")[2]


def _unauthenticated(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers={"WWW-Authenticate": "Bearer"})
