"""Checks that a principal grants no more than it has itself.

Keys are created, rotated and revoked by a principal, however it authenticated. A key that expires
cannot create a key that outlives it. An operator may grant any scope and rate in any tenant.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.base.problems import Problem
from service.store.keys import SCOPES, Principal
from shardwise.errors import BadInput

GRANTABLE = ("read", "submit", "admin", "operator")
"""Scopes of people's keys; agents get theirs when they enrol."""


@dataclass(frozen=True)
class Grant:
    """The rights of a new key.

    `expires_at` is in seconds since 1970, None if it does not expire. `rate_per_s` None means the
    settings' rate, 0 any rate.
    """

    scopes: tuple[str, ...]
    rate_per_s: float | None
    expires_at: float | None


def bounded(
    giver: Principal, tenant: str, grant: Grant, usual_rate_per_s: float, *, exact: bool = False
) -> Grant:
    """Returns the grant as the giver may make it; an open rate becomes the giver's own.

    With `exact` a rate of None is the settings' rate, not an open one, as when a key is rotated.
    Raises BadInput for an unknown scope or an invalid rate, and a problem `forbidden` for a grant
    beyond what the giver has.
    """
    _require_scopes(grant.scopes)
    rate = grant.rate_per_s
    if rate is not None and not 0 <= rate < float("inf"):
        raise BadInput(f"got {rate}", field="rate_per_s", expected="requests a second, 0 for any")
    require_key(giver)
    if not giver.may("operator"):
        if giver.tenant != tenant:
            raise Problem("forbidden", "only an operator may create a key for another tenant")
        require_own_scopes(giver, grant.scopes)
        rate = giver.rate_per_s if rate is None and not exact else rate
        if _effective(rate, usual_rate_per_s) > _effective(giver.rate_per_s, usual_rate_per_s):
            raise Problem("forbidden", "the rate is above your own", field="rate_per_s")
    return Grant(grant.scopes, rate, _earlier(grant.expires_at, giver.key_expires_at))


def require_key(giver: Principal) -> None:
    """Raises a problem `forbidden` where no keys are needed: the first is created on the shell.

    Otherwise a visitor who creates a key would lock out everybody without one.
    """
    if giver.kind == "open":
        raise Problem(
            "forbidden", "the first key of a service is created with `shardwise keys create`"
        )


def _require_scopes(scopes: tuple[str, ...]) -> None:
    for scope in scopes:
        if scope not in GRANTABLE:
            raise BadInput(
                f"{'not for keys' if scope in SCOPES else 'unknown'}: {scope[:40]!r}",
                field="scopes",
                expected=", ".join(GRANTABLE),
            )
    if not scopes:
        raise BadInput("empty", field="scopes", expected=", ".join(GRANTABLE))


def require_own_scopes(giver: Principal, scopes: tuple[str, ...]) -> None:
    """Raises a problem `forbidden` for a key that may do more than the giver."""
    for scope in scopes:
        if not giver.may(scope):
            raise Problem("forbidden", f"your key does not have the scope {scope}", scope=scope)


def _effective(rate_per_s: float | None, usual_rate_per_s: float) -> float:
    rate = usual_rate_per_s if rate_per_s is None else rate_per_s
    return rate if rate > 0 else float("inf")


def _earlier(asked: float | None, own: float | None) -> float | None:
    return min((at for at in (asked, own) if at is not None), default=None)
