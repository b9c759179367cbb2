"""The provider: its metadata (OpenID Connect Discovery) and its signing keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, Key, OKPKey, RSAKey

from service.base.problems import Problem
from service.login.fetch import unreachable

WELL_KNOWN = "/.well-known/openid-configuration"
KEPT_S = 3600.0
"""Seconds for which metadata and keys are considered current."""

AGAIN_S = 60.0
"""The shortest time between two look-ups of the keys, whatever key ids tokens name."""

RETRY_S = 5.0
"""The shortest time between two look-ups of metadata that failed."""

MAX_KEYS = 100
MIN_RSA_BITS = 2048
Fetch = Callable[[Any], Awaitable[tuple[int, dict[str, Any]]]]


class Provider:
    """Metadata and keys of one issuer, kept in memory; one look-up at a time."""

    def __init__(self, issuer: str, fetch: Fetch, clock: Callable[[], float] = monotonic) -> None:
        self.issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._lock = asyncio.Lock()
        self._metadata: dict[str, Any] | None = None
        self._metadata_due = float("-inf")
        self._keys: list[Key] = []
        self._keys_at = float("-inf")

    async def metadata(self) -> dict[str, Any]:
        """Returns the provider's metadata. Raises a problem `unavailable` if there is none.

        While the provider is unreachable, or another call is asking it, its last answer holds.
        """
        asked = self._metadata is not None and self._lock.locked()
        if self._clock() >= self._metadata_due and not asked:
            async with self._lock:
                if self._clock() >= self._metadata_due:
                    await self._look_up()
        if self._metadata is None:
            raise unreachable("its metadata could not be had a moment ago")
        return self._metadata

    async def keys(self, key_id: str | None) -> list[Key]:
        """Returns the keys of an id, or all for a token that names none."""
        known = self._of(key_id)
        asked = bool(known) and self._lock.locked()
        if not asked and (not known or self._clock() >= self._keys_at + KEPT_S):
            metadata = await self.metadata()
            # A call without a key waits for a look-up that is under way.
            async with self._lock:
                if self._clock() >= self._keys_at + AGAIN_S:
                    self._keys_at = self._clock()
                    self._keys = await self._fetched_keys(metadata) or self._keys
        return self._of(key_id)

    async def _look_up(self) -> None:
        pause_s = RETRY_S
        try:
            status, metadata = await self._fetch(self.issuer.rstrip("/") + WELL_KNOWN)
            self._metadata = _checked(metadata, status, self.issuer)
            pause_s = KEPT_S
        except Problem:
            if self._metadata is None:
                raise
        finally:
            # From the look-up's end: a call that waited for one that hung does not start the next.
            self._metadata_due = self._clock() + pause_s

    async def _fetched_keys(self, metadata: dict[str, Any]) -> list[Key]:
        try:
            status, document = await self._fetch(metadata["jwks_uri"])
        except Problem:
            return []
        listed = document.get("keys")
        if status != 200 or not isinstance(listed, list):
            unreachable(f"no keys, status {status}")
            return []
        return [key for one in listed[:MAX_KEYS] if (key := _usable(one)) is not None]

    def _of(self, key_id: str | None) -> list[Key]:
        return [key for key in self._keys if key_id is None or key.kid == key_id]


def _checked(document: dict[str, Any], status: int, issuer: str) -> dict[str, Any]:
    """Returns the metadata, if it is the issuer's own and complete."""
    if status != 200:
        raise unreachable(f"no metadata, status {status}")
    if document.get("issuer") != issuer:
        raise unreachable(f"it calls itself {str(document.get('issuer'))[:200]!r}, not {issuer!r}")
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        if not isinstance(document.get(name), str):
            raise unreachable(f"its metadata has no {name}")
    return document


def _usable(document: Any) -> Key | None:
    """Returns a public key for signatures.

    Returns None for anything else, such as a secret or a short key.
    """
    if not isinstance(document, dict) or document.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    if document.get("use") not in (None, "sig"):
        return None
    try:
        key = JWKRegistry.import_key(document)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAKey):
        return key if key.public_key.key_size >= MIN_RSA_BITS else None
    return key if isinstance(key, ECKey | OKPKey) else None
