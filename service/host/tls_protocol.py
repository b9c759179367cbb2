"""TLS in front of HTTP: a connection has its place, and a time to shake hands, from the start."""

from __future__ import annotations

import asyncio
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import cast

from service.host.certificates import Certificates
from service.host.connections import Connections, Slot
from service.host.http_protocol import BoundedProtocol

SHUTDOWN_S = 2.0
"""How long the other side may take to say goodbye; nothing depends on it."""


class TlsProtocol(SSLProtocol):
    """asyncio's TLS under the certificate of the moment; HTTP begins when hands are shaken.

    The loop's own server would begin to count a connection only then.
    """

    max_size = 2**16
    """Bytes that are read at once; each connection has a buffer of them."""

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
        """Takes a place; without one nothing can be said, as that would take a handshake."""
        # uvloop's transports are asyncio's by their methods alone.
        plain = cast(asyncio.Transport, transport)
        address = (plain.get_extra_info("peername") or ("",))[0]
        self._slot = self._http.slot = self._places.admit(str(address), plain.abort)
        if self._slot is None:
            self._on_refusal("connections")
            plain.abort()
            return
        super().connection_made(plain)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Frees the place of a connection that never came to HTTP."""
        if self._slot is not None:
            if not self._http.begun:
                self._on_refusal("tls")
            self._places.leave(self._slot)
            super().connection_lost(exc)
