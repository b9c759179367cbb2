"""Audit lines for changes by commands: the same actions as over HTTP, by the shell."""

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
    """Adds a line for a command to a tenant's audit, in the transaction of its change.

    There is no key and no request: the command uses the database directly.
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
    """Returns `shell:USER`: the process's user by name, or by number if it has no name.

    The environment is not asked, since anyone can set it. No login has such a name: those begin
    with `oidc:`.
    """
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"shell:{quote(user, safe='')[:MAX_USER]}"
