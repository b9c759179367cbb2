"""A stand-in for the name server of a container network: its containers' names, and no more.

Prometheus asks the name servers of /etc/resolv.conf for the addresses of `service` and `worker`;
it does not read /etc/hosts.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable
from socketserver import BaseRequestHandler, ThreadingUDPServer

ADDRESS = "127.0.0.1"
_A, _IN = 1, 1
_ANSWER, _UNKNOWN = 0x8580, 0x8583
"""Flags of RFC 1035, 4.1.1: a response, authoritative, recursion; the latter with NXDOMAIN."""


def serve_names(names: Iterable[str], port: int = 53) -> ThreadingUDPServer:
    """Answers for these names with `ADDRESS`, on UDP, until the process ends or `shutdown`."""
    known = {name.lower() for name in names}

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            data, connection = self.request
            if len(data) > 12:
                connection.sendto(answer(data, known), self.client_address)

    server = ThreadingUDPServer((ADDRESS, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def answer(query: bytes, known: set[str]) -> bytes:
    """Returns the message that answers a query's one question (RFC 1035, 4.1)."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    question = query[12 : at + 5]
    wanted = struct.unpack(">HH", question[-4:])
    is_known = ".".join(labels).lower() in known
    count = int(is_known and wanted == (_A, _IN))
    head = query[:2] + struct.pack(">5H", _ANSWER if is_known else _UNKNOWN, 1, count, 0, 0)
    # The name by a pointer to the question's (4.1.4), valid for a second.
    row = struct.pack(">HHHIH", 0xC00C, _A, _IN, 1, 4) + socket.inet_aton(ADDRESS)
    return head + question + row * count
