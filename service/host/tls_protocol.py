"""TLS in front of HTTP: a connection has its place, and a handshake timeout, from the start."""

from __future__ import annotations

import asyncio
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import cast

from service.host.certificates import Certificates
from service.host.connections import Connections, Slot
from service.host.http_protocol import BoundedProtocol

SHUTDOWN_S = 2.0
"""Time limit for the other side's closing message; nothing depends on it."""


class TlsProtocol(SSLProtocol):
    """asyncio's TLS with the current certificate; HTTP begins after the handshake.

    The loop's own server would count a connection only from then on.
    """

    max_size = 2**16
    """Bytes that are read at once; each connection has a buffer of this size."""

    def __init__(
        self,
        certificates: Certificates,
        connections: Connections,
        http: BoundedProtocol,
        on_refusal: Callable[[str], None],
        handshake_s: float,
    ) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            http,
            certificates.context,
            None,  # type: ignore[arg-type]  # nothing waits for the handshake
            server_side=True,
            ssl_handshake_timeout=handshake_s,  # type: ignore[arg-type]
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
        self._places = connections
        self._http = http
        self._on_refusal = on_refusal
        self._slot: Slot | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes a place; without one it closes, since an answer would need a handshake."""
        # uvloop's transports only share their methods with asyncio's.
        plain = cast(asyncio.Transport, transport)
        address = (plain.get_extra_info("peername") or ("",))[0]
        self._slot = self._http.slot = self._places.admit(str(address), plain.abort)
        if self._slot is None:
            self._on_refusal("connections")
            plain.abort()
            return
        super().connection_made(plain)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Frees the place of a connection, counting one that never reached HTTP."""
        if self._slot is not None:
            if not self._http.begun:
                self._on_refusal("tls")
            self._places.leave(self._slot)
            super().connection_lost(exc)
