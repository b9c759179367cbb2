"""The audit's lines of what commands change: the same actions as over HTTP, by the shell."""

from __future__ import annotations

import os
import pwd
from urllib.parse import quote

from sqlalchemy.orm import Session

from service.store.records import record

MAX_USER = 64
"""Characters of a user's name that are kept."""


def record_by_shell(
    session: Session, tenant: str, action: str, target: str, status: int = 200
) -> None:
    """One line of a tenant's audit: what a command did, in the transaction that does it.

    Whoever has the database's address has no key, and no request was made.
    """
    record(
        session,
        tenant=tenant,
        key_id=None,
        request_id="",
        action=action,
        target=target,
        status=status,
        actor=shell_actor(),
    )


def shell_actor() -> str:
    """Returns `shell:USER`: the process's user, by its number where that has no name.

    Not by the environment, which says what somebody wants it to. No login is called so: those
    begin with `oidc:`.
    """
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"shell:{quote(user, safe='')[:MAX_USER]}"
