"""Conditional requests (RFC 9110): whether the client's copy is still current."""

from __future__ import annotations


def matches(header: str | None, etag: str | None) -> bool:
    """Returns whether an If-None-Match names this entity tag; weak tags match strong ones."""
    if header is None or etag is None:
        return False
    tags = (tag.strip().removeprefix("W/") for tag in header.split(","))
    return header.strip() == "*" or etag in tags
