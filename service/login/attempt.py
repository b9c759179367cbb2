"""One attempt to sign in, bound to one browser: a random secret in a cookie.

State, nonce (OpenID Connect Core 3.1.2.1) and the verifier of PKCE (RFC 7636) are each
SHA-256(label ‖ secret). Nothing is stored here, so that any process may finish the attempt, and
an answer of the provider that another browser asked for is useless.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from service.base.base64url import from_base64url, to_base64url

MAX_WHERE = 1000
"""Bytes of the path to which a person returns; a longer one leads to the first page."""

_COOKIE = re.compile(r"([0-9A-Za-z_-]{43})\.([0-9A-Za-z_-]{0,1400})")


@dataclass(frozen=True)
class Attempt:
    """A secret, and the path of the service to go to afterwards."""

    secret: str
    where: str

    @property
    def state(self) -> str:
        """The value that the provider returns."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """The value that the ID token contains."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """The proof to the provider that this attempt asked for the code."""
        return self._derived("verifier")

    def cookie(self) -> str:
        """Returns the cookie's value."""
        where = to_base64url(self.where.encode())
        return f"{self.secret}.{where}"

    def _derived(self, label: str) -> str:
        digest = hashlib.sha256(f"{label}:{self.secret}".encode()).digest()
        return to_base64url(digest)


def new_attempt(where: str) -> Attempt:
    """Returns an attempt with a new secret of 256 bits."""
    path = where if len(where.encode("utf-8", "replace")) <= MAX_WHERE else "/"
    return Attempt(secrets.token_urlsafe(32), path)


def read_attempt(cookie: str) -> Attempt | None:
    """Returns the attempt of a cookie; None if it is not one."""
    match = _COOKIE.fullmatch(cookie)
    if match is None:
        return None
    try:
        where = from_base64url(match[2]).decode()
    except ValueError:
        return None
    return Attempt(match[1], where)
