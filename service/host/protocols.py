"""The protocol of a new connection: HTTP within the settings' bounds, over TLS if configured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from service.base.settings import Settings
from service.edge.metrics import Metrics
from service.host.certificates import Certificates
from service.host.connections import Connections
from service.host.http_protocol import BoundedProtocol, Bounds
from service.host.open_files import raise_open_files
from service.host.tls_protocol import TlsProtocol


def protocol_of(
    settings: Settings, metrics: Metrics, certificates: Certificates | None
) -> Callable[..., asyncio.BaseProtocol]:
    """Returns a factory of connections' protocols that takes uvicorn's arguments."""
    most = raise_open_files(settings.max_connections)
    # Behind a proxy all clients have its address.
    proxies = settings.trusted_proxies
    connections = Connections(most, settings.max_connections_per_address, proxies)
    metrics.connections.set_function(lambda: len(connections))
    bounds = Bounds(settings.max_head_bytes, settings.head_s, settings.body_silence_s)

    def refused(reason: str) -> None:
        metrics.refused.labels(reason).inc()

    def make(**of_uvicorn: Any) -> asyncio.BaseProtocol:
        http = BoundedProtocol(
            bounds=bounds, connections=connections, on_refusal=refused, **of_uvicorn
        )
        if certificates is None:
            return http
        return TlsProtocol(certificates, connections, http, refused, settings.head_s)

    return make
