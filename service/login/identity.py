"""The identity of a person by the provider's claims: subject, name, groups."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from service.login.tokens import TokenRefused

MAX_SUBJECT = 255
MAX_NAME = 100
MAX_GROUPS = 10_000
NAMES = ("email", "preferred_username", "name")
KEY_ID = 32
"""Letters of a key id in jobs and audit."""

_PLAIN = "!$&'()*+,-./:;=?@_~|"


@dataclass(frozen=True)
class Identity:
    """A person, or a program, that the provider vouches for."""

    subject: str
    name: str
    groups: tuple[str, ...]


def identity_of(claims: Mapping[str, Any], groups_claim: str) -> Identity:
    """Returns the identity that claims are about. Raises TokenRefused without a usable subject."""
    subject = claims.get("sub")
    if not (isinstance(subject, str) and 0 < len(subject) <= MAX_SUBJECT):
        raise TokenRefused("the token's subject is not readable")
    if not (subject.isascii() and subject.isprintable()):
        raise TokenRefused("the token's subject is not readable")
    return Identity(subject, _name(claims), groups_of(claims, groups_claim) or ())


def groups_of(claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Returns the groups of a claim; None if there is no such claim.

    The name may be a path with dots, such as `realm_access.roles`.
    """
    claim: Any = claims.get(name)
    if claim is None and "." in name:
        claim = claims
        for part in name.split("."):
            claim = claim.get(part) if isinstance(claim, Mapping) else None
    if claim is None:
        return None
    listed = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return tuple(group for group in listed[:MAX_GROUPS] if isinstance(group, str))


def key_id_of(subject: str) -> str:
    """Returns the id of a person where a key's id would be: at most 32 characters.

    `oidc:SUBJECT`, or `oidc#` and a digest of a subject that is too long or holds spaces.
    """
    plain = quote(subject, safe=_PLAIN)
    if plain == subject and len(subject) <= KEY_ID - 5:
        return f"oidc:{subject}"
    return f"oidc#{hashlib.sha256(subject.encode()).hexdigest()[: KEY_ID - 5]}"


def actor_of(subject: str, name: str) -> str:
    """Returns how the audit names a person: the whole subject, which ends at the first space."""
    return f"oidc:{quote(subject, safe=_PLAIN)}" + (f" ({name})" if name else "")


def _name(claims: Mapping[str, Any]) -> str:
    """Returns the person's display name; empty if the provider does not give one."""
    for name in NAMES:
        text = claims.get(name)
        if isinstance(text, str) and text.strip():
            return "".join(c if c.isprintable() else " " for c in text.strip()[:MAX_NAME])
    return ""
