"""Described kinds that have no example, and why: nothing of them can be compared."""

UNVERIFIED: dict[str, str] = {
    "aten.empty_like.default": "uninitialised memory",
}
