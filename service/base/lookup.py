"""Look-ups of names, a bounded number at once: a resolver can be slow on purpose.

getaddrinfo cannot be interrupted, and the operator of a name's server decides how long it takes.
Each look-up has a thread of its own, which the process does not wait for when it ends; their number
is bounded for each owner and in total.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from concurrent.futures import Future
from ipaddress import ip_address

MAX_ADDRESSES = 16


class LookupFailed(Exception):
    """A name has no address, or cannot be looked up now."""


class Lookups:
    """Looks names up; at most `most` at once, of these `most_each` for one owner."""

    def __init__(self, most: int = 64, most_each: int = 8) -> None:
        self._most = most
        self._most_each = most_each
        self._running: Counter[str] = Counter()
        self._lock = threading.Lock()

    def start(self, host: str, port: int, owner: str) -> Future[list[str]]:
        """Returns a future of the addresses of a host. The future, or this call, raises
        `LookupFailed`."""
        future: Future[list[str]] = Future()
        if _is_address(host):
            future.set_result([host])
            return future
        with self._lock:
            if self._running[owner] >= self._most_each or self._running.total() >= self._most:
                raise LookupFailed("too many names are being looked up")
            self._running[owner] += 1
        threading.Thread(
            target=self._run, args=(host, port, owner, future), name="look-up", daemon=True
        ).start()
        return future

    def _run(self, host: str, port: int, owner: str, future: Future[list[str]]) -> None:
        try:
            addresses = _addresses(host, port)
        except LookupFailed as error:
            self._end(owner)
            _give(future, error)
        else:
            self._end(owner)
            _give(future, addresses)

    def _end(self, owner: str) -> None:
        with self._lock:
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]


def _give(future: Future[list[str]], outcome: list[str] | LookupFailed) -> None:
    if not future.set_running_or_notify_cancel():
        return  # the caller has stopped waiting
    if isinstance(outcome, LookupFailed):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _addresses(host: str, port: int) -> list[str]:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise LookupFailed("its name has no address") from None
    return list(dict.fromkeys(str(row[4][0]) for row in rows))[:MAX_ADDRESSES]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
