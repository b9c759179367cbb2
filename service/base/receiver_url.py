"""The URL of a receiver, read strictly: a URL that parsers could read differently is refused.

A number as a host (`2130706433`, `0x7f.1`, `0177.0.0.1`) is 127.0.0.1 to some resolvers and a name
to others; a backslash, a user name or a full-width letter moves the host for some parsers. None of
them is needed to write a URL down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from shardwise.errors import BadInput

MAX_URL = 2000
PORTS = {"https": 443, "http": 80}
EXPECTED = "https://HOST[:PORT]/PATH in ASCII, without user, password or fragment"
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>[/?][!$-;=?-\[\]_a-z|~]*)?",
    re.IGNORECASE,
)
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True)
class ReceiverUrl:
    """The parts of a receiver's URL. `host` is a lower-case name or an address."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The host, and the port unless it is the scheme's default, as in the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def read_receiver_url(text: str) -> ReceiverUrl:
    """Returns the parts of a receiver's URL.

    Raises `BadInput` if it is not a plain http or https URL, for a host that is written in an
    unusual form, and for ports below 1024 other than 80 and 443. The URL is not repeated in the
    error: it may hold a token.
    """
    if len(text) > MAX_URL:
        raise _bad(f"longer than {MAX_URL} characters")
    match = _URL.fullmatch(text)
    if match is None:
        raise _bad("not a plain URL")
    scheme = match["scheme"].lower()
    port = PORTS[scheme] if match["port"] is None else int(match["port"])
    if port not in PORTS.values() and not 1024 <= port <= 65535:
        raise BadInput(f"port {port}", field="url", expected="443, 80 or 1024 to 65535")
    target = match["target"] or "/"
    return ReceiverUrl(
        scheme, _host(match["host"].lower()), port, target if target[0] == "/" else f"/{target}"
    )


def _host(text: str) -> str:
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except ValueError:
            raise _bad("the host is not an IPv6 address") from None
    if not _NAME.fullmatch(text):
        raise _bad("the host is not a name")
    if _NUMBER.fullmatch(text.rpartition(".")[2]):
        try:
            return str(IPv4Address(text))
        except ValueError:
            raise _bad("the host is a number, but not an IPv4 address as a.b.c.d") from None
    return text


def _bad(what: str) -> BadInput:
    return BadInput(what, field="url", expected=EXPECTED)
