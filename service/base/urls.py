"""URLs of servers, checked before they are printed or parsed: they contain passwords."""

from __future__ import annotations

from urllib.parse import urlsplit

from shardwise.errors import BadInput

DATABASES = ("sqlite", "postgres", "postgresql")
BROKERS = ("redis", "rediss", "valkey", "valkeys", "unix")


def require_database_url(url: str) -> None:
    """Raises BadInput, without the password, unless the URL names PostgreSQL or SQLite."""
    if url:
        scheme = _require(url, "database_url", DATABASES, "postgresql://… or sqlite:///…")
        if scheme == "sqlite" and urlsplit(url).netloc:
            raise BadInput(
                "a SQLite URL has three slashes",
                field="database_url",
                expected="sqlite:///PATH, or sqlite:////PATH from the root",
            )


def require_redis_url(url: str) -> None:
    """Raises BadInput, without the password, unless the URL names a Redis or Valkey."""
    if url:
        _require(url, "redis_url", BROKERS, "redis://…, rediss://… or unix://…")


def _require(url: str, field: str, schemes: tuple[str, ...], expected: str) -> str:
    """Returns the scheme. Text that is not a URL may be a bare password, so it is not repeated."""
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
    # After an unescaped `/`, `?` or `#` the rest of a password would be taken for a path.
    local = scheme in ("sqlite", "unix")
    if parts is None or (not local and "@" in parts.path + parts.query + parts.fragment):
        raise BadInput(
            "its host, port or password cannot be read",
            field=field,
            expected=f"{expected}, other characters of a password as %XX",
        )
    return scheme
