"""Who the agent is to its service: enrolled once with a token, then known by its key."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import uuid
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.clock import now_s
from agent.datadir import write_durably
from agent.service import Refusal, Service, Unreachable
from shardwise.errors import BadInput, ShardwiseError

log = logging.getLogger(__name__)
SCHEMA = "shardwise.identity/1"
TOKEN_VARIABLE = "SHARDWISE_ENROL_TOKEN"
TOKEN_FD = "SHARDWISE_ENROL_TOKEN_FD"
"""Holds the number of the open file with the token, after `hide_token` has restarted the agent."""
ENROL_TRIES_S = 60.0


@dataclass(frozen=True)
class Identity:
    """What enrolment gave. `key` is a secret; the two durations are the service's."""

    server: str
    id: str
    key: str
    name: str
    lease_s: float
    heartbeat_s: float

    def __repr__(self) -> str:
        return f"Identity({self.id!r}, {self.name!r}, {self.server!r})"


def stored_identity(path: Path) -> Identity | None:
    """Returns the identity of an earlier start, or None.

    Raises `BadInput` when it is broken or readable by others.
    """
    try:
        mode = path.stat().st_mode
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot be read: {error}", file=str(path), expected="a file that the agent can read"
        ) from None
    if mode & 0o077:
        raise BadInput("others may read it", file=str(path), expected="mode 600")
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise BadInput("not an identity file", file=str(path), expected=SCHEMA)
    try:
        return Identity(**document)
    except TypeError:
        raise BadInput("fields are missing", file=str(path), expected=SCHEMA) from None


def hide_token() -> None:
    """Restarts this program without the token's variable, if it is set.

    `/proc/PID/environ` shows what a process was started with, whatever it deletes later, and a
    launch runs as the agent's user: the token is handed over in a file without a name.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is None:
        return
    kept = os.memfd_create("token", 0)
    os.write(kept, token.encode())
    os.set_inheritable(kept, True)
    own = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    os.execve(sys.executable, sys.orig_argv, {**own, TOKEN_FD: str(kept)})


def handed_over(environment: MutableMapping[str, str]) -> str:
    """Returns the token of `hide_token`, once; empty if there is none."""
    number = environment.pop(TOKEN_FD, "")
    if not number.isdigit():
        return ""
    try:
        with os.fdopen(int(number), "rb") as file:
            file.seek(0)
            return file.read(4096).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def read_token(file: str | None, given: str) -> str:
    """Returns the token, from a file or as `given` by the environment.

    Never from a flag, which `ps` shows. Raises `BadInput`.
    """
    if file is None:
        token = given.strip()
        if not token:
            raise BadInput(
                "this agent is not enrolled and has no token",
                field="token_file",
                expected=f"--token-file or {TOKEN_VARIABLE}, from `shardwise keys enrol`",
            )
        return token
    try:
        token = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise BadInput(
            reason.lower(), file=file, field="token_file", expected="a file that the agent can read"
        ) from None
    if not token:
        raise BadInput("empty", file=file, field="token_file", expected="a token")
    return token


def enrol(path: Path, server: str, token: str, name: str, inventory: dict[str, Any]) -> Identity:
    """Enrols and stores the identity in `path` (0600).

    Raises `BadInput` when the token is refused, `Unreachable` when there is no answer for a minute.
    The file is tested before the token is used up: a key that cannot be stored is lost.
    """
    _try_file(path, inventory)
    with Service(server) as service:
        enrolment = _ask(service, token, name, inventory)
    try:
        identity = Identity(
            server,
            str(enrolment["id"]),
            str(enrolment["key"]),
            name,
            float(enrolment["lease_s"]),
            float(enrolment["heartbeat_s"]),
        )
    except (KeyError, TypeError, ValueError):
        raise ShardwiseError(f"{server}: cannot understand the answer to the enrolment") from None
    write_durably(path, json.dumps({"schema": SCHEMA, **asdict(identity)}).encode())
    log.info("enrolled", extra={"agent": identity.id})
    return identity


def _try_file(path: Path, inventory: dict[str, Any]) -> None:
    test = path.with_suffix(".test")
    try:
        write_durably(test, json.dumps(inventory).encode())
        test.unlink()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(
            reason,
            file=os.fspath(path.parent),
            field="data_dir",
            expected="a folder that the agent can write to",
        ) from None


def _ask(service: Service, token: str, name: str, inventory: dict[str, Any]) -> dict[str, Any]:
    started = now_s()
    once = str(uuid.uuid4())
    while True:
        try:
            return service.enrol(token, name, inventory, once)
        except Refusal as error:
            expected = "a fresh token: each is good for a number of enrolments, for a while"
            raise BadInput(
                f"the service refuses the enrolment: {error}", field="token", expected=expected
            ) from None
        except Unreachable as error:
            if now_s() - started > ENROL_TRIES_S:
                raise
            log.warning("not enrolled yet: %s", error)
            time.sleep(max(1.0, error.retry_after_s))
