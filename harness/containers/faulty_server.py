"""HTTP servers that go wrong in one way each, on an address that containers reach."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_S = 0.3


def _silent(client: socket.socket) -> None:
    client.recv(1)
    while client.recv(65536):
        pass


def _head(client: socket.socket) -> None:
    client.recv(65536)
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")


def _slow(client: socket.socket) -> None:
    _head(client)
    while True:
        client.sendall(b"x")
        time.sleep(PAUSE_S)


def _endless(client: socket.socket) -> None:
    _head(client)
    while True:
        client.sendall(b"x" * 65536)


def _text(text: str) -> Callable[[socket.socket], None]:
    def answer(client: socket.socket) -> None:
        _head(client)
        client.sendall(text.encode())

    return answer


def advice(nodes: int, gpus: int) -> str:
    """Returns an answer that advises nodes with GPUs."""
    return f"#!/bin/sh\n#SBATCH --nodes={nodes}\n#SBATCH --gres=gpu:{gpus}\n"


FAULTS: dict[str, Callable[[socket.socket], None]] = {
    "silent": _silent,
    "slow": _slow,
    "endless": _endless,
    "a page": _text("<html>not the service</html>"),
    "absurd": _text(advice(99999999999999999999, 8888)),
    "no such nodes": _text(advice(1, 8)),
    "nothing": _text(advice(0, 0)),
}


@contextmanager
def faulty_server(address: str, fault: str) -> Iterator[str]:
    """Yields the URL of a server with one of `FAULTS`."""
    listener = socket.create_server((address, 0))

    def serve(client: socket.socket) -> None:
        with client:
            try:
                FAULTS[fault](client)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://{address}:{listener.getsockname()[1]}"
    finally:
        listener.close()
