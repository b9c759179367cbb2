"""One attempt to deliver: look up, check, connect to that very address, post, judge.

The response's body does not matter and is never kept; a redirect is not followed, since it would
lead to an unchecked address. The deadline covers the whole attempt.
"""

from __future__ import annotations

import re
import socket
import ssl
from concurrent.futures import TimeoutError as LookupTimeout
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from service.base.lookup import LookupFailed, Lookups
from service.base.public_address import Reach
from service.base.receiver_url import ReceiverUrl, read_receiver_url
from service.base.receivers import NotReachable, permitted
from shardwise.errors import BadInput

_INTERIM = re.compile(rb"HTTP/1\.[01] 1[0-9][0-9]\b")
MAX_STATUS_LINE = 1024
MAX_DRAINED = 16 * 1024
DRAINED_WITHIN_S = 1.0
CONNECTS = 3
"""The number of addresses of one name that are tried."""


class Deadline(Exception):
    """The attempt has taken too long."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: the receiver's status, if any, and why the attempt does not count."""

    status: int | None
    reason: str

    @property
    def taken(self) -> bool:
        """Whether the receiver accepted it."""
        return not self.reason


class Poster:
    """Posts to receivers within the operator's reach."""

    def __init__(self, reach: Reach, timeout_s: float) -> None:
        self._reach = reach
        self._timeout_s = timeout_s
        self._lookups = Lookups()
        # SSL_CERT_FILE names other authorities than the system's.
        self._tls = ssl.create_default_context()

    def post(self, url_text: str, owner: str, headers: dict[str, str], body: bytes) -> Outcome:
        """Returns how one attempt ended, after `timeout_s` at the latest.

        The number of look-ups under way for each `owner` is bounded.
        """
        until = monotonic() + self._timeout_s
        try:
            url = read_receiver_url(url_text)
            with self._connected(url, owner, until) as connection:
                connection.settimeout(_left(until))
                connection.sendall(_request(url, headers, body))
                outcome = _judged(_status_line(connection, until))
                _drain(connection, until)
                return outcome
        except (LookupFailed, NotReachable) as error:
            return Outcome(None, str(error))
        except (Deadline, TimeoutError):
            return Outcome(None, f"no answer within {self._timeout_s:g} s")
        except ssl.SSLCertVerificationError as error:
            return Outcome(None, f"its certificate is not valid: {error.verify_message}")
        except ssl.SSLError:
            return Outcome(None, "TLS failed")
        except OSError:
            return Outcome(None, "the connection failed")
        except BadInput as error:
            return Outcome(None, str(error))

    def _connected(self, url: ReceiverUrl, owner: str, until: float) -> socket.socket:
        lookup = self._lookups.start(url.host, url.port, owner)
        try:
            addresses = permitted(url, lookup.result(_left(until)), self._reach)
        except LookupTimeout:
            raise LookupFailed("its name cannot be looked up in time") from None
        plain = _connect(addresses[:CONNECTS], url.port, until)
        if url.scheme != "https":
            return plain
        try:
            plain.settimeout(_left(until))
            return self._tls.wrap_socket(plain, server_hostname=url.host)
        except BaseException:
            plain.close()
            raise


def _connect(addresses: list[str], port: int, until: float) -> socket.socket:
    """Connects to the first address that answers; nothing is looked up again."""
    last: OSError | None = None
    for number, address in enumerate(addresses):
        share_s = _left(until) / (len(addresses) - number)
        try:
            return socket.create_connection((address, port), timeout=share_s)
        except OSError as error:
            last = error
    raise last or OSError("no address")


def _request(url: ReceiverUrl, headers: dict[str, str], body: bytes) -> bytes:
    sent = {
        "Host": url.authority,
        "User-Agent": "shardwise-webhooks/1",
        "Accept": "*/*",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    lines = [f"POST {url.target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _status_line(connection: socket.socket, until: float) -> bytes:
    """Returns the final response's first line, or what there is of it when the receiver closes.

    Interim responses (1xx, RFC 9110 section 15.2) are passed over, within the same bound.
    """
    read = b""
    left = MAX_STATUS_LINE
    while True:
        line, ended, _ = read.partition(b"\n")
        interim = _INTERIM.match(line) is not None
        if ended and not interim:
            return line
        _, complete, rest = read.partition(b"\r\n\r\n")
        if interim and complete:
            read = rest
            continue
        connection.settimeout(_left(until))
        piece = connection.recv(left) if left else b""
        if not piece:
            return line
        left -= len(piece)
        read += piece


def _judged(line: bytes) -> Outcome:
    version, _, rest = line.strip().partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        return Outcome(None, "its answer is not HTTP")
    status = int(code)
    if 200 <= status < 300:
        return Outcome(status, "")
    if 300 <= status < 400:
        return Outcome(status, f"answered {status}: redirects are not followed")
    return Outcome(status, f"answered {status}")


def _drain(connection: socket.socket, until: float) -> None:
    """Reads a little of the rest, so that a receiver's last write does not fail."""
    until = min(until, monotonic() + DRAINED_WITHIN_S)
    read = 0
    with suppress(Deadline, OSError):
        while read < MAX_DRAINED:
            connection.settimeout(_left(until))
            piece = connection.recv(4096)
            if not piece:
                return
            read += len(piece)


def _left(until: float) -> float:
    left = until - monotonic()
    if left <= 0:
        raise Deadline
    return left
