"""`serve`: binds, prepares the database, starts missing parts, runs until asked to stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn

from service.base.addresses import forwarded_allow_ips
from service.base.logs import set_up_logs
from service.base.settings import Settings
from service.base.traces import set_up_traces
from service.host.app import create_app
from service.host.certificates import Certificates, certificates_of
from service.host.embedded import INFO_FILE, Embedded, Lock
from service.host.protocols import protocol_of
from service.store.database import Database, database_of_calls
from service.store.keys import keys_in_force
from service.store.schema import migrate, require_schema
from shardwise.errors import BadInput

log = logging.getLogger(__name__)
DRAIN_S = 5

SWITCH_S = 0.001
"""Seconds after which a computing thread yields to the event loop (Python's default: 5 ms)."""


class Server(uvicorn.Server):
    """Tells open event streams to end when the process is to stop."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shuts down as uvicorn does, after asking event streams to end."""
        self._on_stop()
        await super().shutdown(sockets)


def serve(settings: Settings, *, may_migrate: bool, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT.

    `announce` gets the URL once requests are answered. Raises `BadInput` for a port that is taken,
    an unknown schema, or an address that needs keys if there are none.
    """
    set_up_logs(settings.log_level, settings.log_format)
    set_up_traces()
    # The server handles these while it runs and raises them again once it has drained.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    lock = None if settings.database_url and settings.redis_url else Lock(settings.folder)
    certificates = certificates_of(settings)
    listening = bind(settings.host, settings.port)
    url = url_of(listening, secure=certificates is not None)
    database = database_of_calls(settings)
    try:
        if may_migrate or not settings.database_url:
            # A migration may take as long as it needs, on connections of its own.
            with closing(Database(settings.database)) as patient:
                migrate(patient)
        require_schema(database)
        require_keys(settings, database)
        embedded = Embedded(settings) if settings.embedded else None
        try:
            if embedded is not None:
                embedded.start(database)
                settings = embedded.settings
            run(settings, database, listening, url, announce, certificates)
        finally:
            if embedded is not None:
                embedded.stop()
    finally:
        database.close()
        listening.close()
        del lock


def run(
    settings: Settings,
    database: Database,
    listening: socket.socket,
    url: str,
    announce: Callable[[str], None],
    certificates: Certificates | None = None,
) -> None:
    """Runs the HTTP server on a bound socket."""
    sys.setswitchinterval(SWITCH_S)
    app = create_app(settings, database)
    # Long-lived objects are not scanned each time: a full collection stops every thread, for
    # 150 ms with all imports.
    gc.collect()
    gc.freeze()
    state = app.state.shardwise
    config = uvicorn.Config(
        app,
        # uvicorn asks for a class and calls it with its own arguments.
        http=cast("type[asyncio.Protocol]", protocol_of(settings, state.metrics, certificates)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=forwarded_allow_ips(settings.trusted_proxies),
        timeout_graceful_shutdown=DRAIN_S,
        timeout_keep_alive=75,
    )
    if certificates is not None:
        certificates.watch()
    info = None if settings.database_url else _write_info(settings, url)
    announce(url)
    try:
        Server(config, state.stopping.set).run(sockets=[listening])
    finally:
        if info is not None:
            info.unlink(missing_ok=True)
        if certificates is not None:
            certificates.stop()


def _leave(number: int, frame: FrameType | None) -> None:
    """Exits through every `finally`; ignores further signals, since that takes a bounded time."""
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(0)


def _write_info(settings: Settings, url: str) -> Path:
    """Writes where clients on this host reach the service. Returns the file's path."""
    path = settings.folder / INFO_FILE
    path.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    return path


def bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises `BadInput` if port or address cannot be used."""
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = rows[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except socket.gaierror:
        raise BadInput(
            f"unknown address {host!r}", field="host", expected="a name or an address of this host"
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadInput(
                f"port {port} of {host} is taken", field="port", expected="another; 0 takes any"
            ) from None
        reason = (error.strerror or str(error)).lower()
        raise BadInput(
            f"cannot listen on {host}:{port}: {reason}",
            field="host",
            expected="an address and a port that are free and allowed",
        ) from None
    return listening


def url_of(listening: socket.socket, *, secure: bool = False) -> str:
    """Returns the URL of a bound socket, with https if it speaks TLS."""
    host, port = listening.getsockname()[:2]
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def require_keys(settings: Settings, database: Database) -> None:
    """Raises BadInput if hosts other than this one could call without a key."""
    if settings.oidc_issuer or (settings.loopback and settings.auth == "auto"):
        return
    with database.read() as session:
        if keys_in_force(session):
            return
    raise BadInput(
        f"listening on {settings.host} needs keys, and there are none",
        field="host",
        expected="`shardwise keys create` first, or --host 127.0.0.1",
    )
