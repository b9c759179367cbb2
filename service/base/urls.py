"""URLs of servers, checked before anybody prints or parses them: they hold passwords."""

from __future__ import annotations

from urllib.parse import urlsplit

from shardwise.errors import BadInput

DATABASES = ("sqlite", "postgres", "postgresql")
BROKERS = ("redis", "rediss", "valkey", "valkeys", "unix")


def require_database_url(url: str) -> None:
    """BadInput, without the URL's password, unless it names a PostgreSQL or SQLite database."""
    if url:
        scheme = _require(url, "database_url", DATABASES, "postgresql://… or sqlite:///…")
        if scheme == "sqlite" and urlsplit(url).netloc:
            raise BadInput("a SQLite URL has three slashes", field="database_url")


def require_redis_url(url: str) -> None:
    """BadInput, without the URL's password, unless it names a Redis or Valkey."""
    if url:
        _require(url, "redis_url", BROKERS, "redis://…, rediss://… or unix://…")


def _require(url: str, field: str, schemes: tuple[str, ...], expected: str) -> str:
    """Returns the scheme. What is no URL may be a password alone, so that it is not repeated."""
    whole, is_url, _ = url.partition("://")
    if not is_url:
        raise BadInput("not a URL", field=field, expected=expected)
    scheme = whole.partition("+")[0]
    if scheme not in schemes:
        raise BadInput(f"unknown kind {scheme[:20]!r}", field=field, expected=expected)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = None
    # With an unescaped `/`, `?` or `#` in a password its rest would be taken for a path.
    local = scheme in ("sqlite", "unix")
    if parts is None or (not local and "@" in parts.path + parts.query + parts.fragment):
        raise BadInput(
            "its host, port or password cannot be read",
            field=field,
            expected=f"{expected}, other characters of a password as %XX",
        )
    return scheme
