"""Checks of the settings of logins, before the provider is asked for anything."""

from __future__ import annotations

import ipaddress
from typing import Protocol
from urllib.parse import urlsplit

from shardwise.errors import BadInput

HTTPS = "an https:// URL, or http:// on loopback"


class LoginSettings(Protocol):
    """The settings that `require_login` checks."""

    @property
    def public_url(self) -> str: ...
    @property
    def oidc_issuer(self) -> str: ...
    @property
    def oidc_client_id(self) -> str: ...
    @property
    def oidc_rules_file(self) -> str: ...
    @property
    def oidc_scopes(self) -> str: ...


def require_login(settings: LoginSettings) -> None:
    """Raises BadInput with the field if logins are only partly set up, or over plain HTTP."""
    if settings.public_url:
        require_origin(settings.public_url, "public_url")
    if not settings.oidc_issuer:
        return
    if not is_safe(settings.oidc_issuer):
        raise BadInput("not safe", field="oidc_issuer", expected=HTTPS)
    for name in ("oidc_client_id", "oidc_rules_file", "public_url"):
        if not getattr(settings, name):
            raise BadInput("missing", field=name, expected="a value, because oidc_issuer is set")
    if "openid" not in settings.oidc_scopes.split():
        raise BadInput(
            f"got {settings.oidc_scopes[:100]!r}", field="oidc_scopes", expected="openid among them"
        )


def require_origin(url: str, field: str) -> None:
    """Raises BadInput unless a URL has only scheme, host and port."""
    parts = urlsplit(url)
    bare = not (parts.path.strip("/") or parts.query or parts.fragment)
    if not (is_safe(url) and bare):
        raise BadInput("not an address that browsers may use", field=field, expected=HTTPS)


def is_safe(url: str) -> bool:
    """Returns True for https, and for http on this host, if there is no user and no password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if not parts.hostname or parts.username is not None or any(c <= " " for c in url):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname))


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
