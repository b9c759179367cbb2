"""HTTP for both clients: the server, the key, httpx's settings and errors."""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

import httpx

from shardwise import __version__
from shardwise.client.exchange import Lost, Reply, Request
from shardwise.errors import BadInput

CONNECT_S = 5.0
_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
KEY_EXPECTED = "a key as `shardwise keys create` prints it"


def settings(server: str, key: str | None, timeout_s: float) -> dict[str, Any]:
    """Returns the keywords of httpx's clients. Raises `BadInput` for an invalid URL or key."""
    host = _host(server)
    headers = {"User-Agent": f"shardwise/{__version__}", "Accept": "application/json"}
    if key is not None:
        if not (key and key.isascii() and key.isprintable() and " " not in key):
            raise BadInput("this is not a key", field="key", expected=KEY_EXPECTED)
        headers["Authorization"] = f"Bearer {key}"
    if not 0 < timeout_s < float("inf"):
        raise BadInput(f"got {timeout_s}", field="timeout_s", expected="a finite number above 0")
    local = _is_loopback(host)
    keywords: dict[str, Any] = {
        "base_url": server.rstrip("/"),
        "headers": headers,
        "timeout": httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
        # On loopback, variables such as HTTP_PROXY are ignored.
        "trust_env": not local,
    }
    if local and server.startswith("https:"):
        # SSL_CERT_FILE is not: it names who signed the service's certificate.
        keywords["verify"] = httpx.create_ssl_context()
    return keywords


def built(client: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    """Returns the request as httpx sends it."""
    keywords: dict[str, Any] = {}
    if request.read_s is not None:
        usual = client.timeout
        keywords["timeout"] = httpx.Timeout(
            connect=usual.connect, read=request.read_s, write=usual.write, pool=usual.pool
        )
    return client.build_request(
        request.method,
        request.path,
        params=list(request.query) or None,
        headers=dict(request.headers),
        content=request.body,
        **keywords,
    )


def reply_of(response: httpx.Response) -> Reply:
    """Returns a response that was read."""
    return Reply(response.status_code, dict(response.headers), response.content)


def lost(server: str, error: httpx.RequestError) -> Lost:
    """Returns the error in one line that names the server."""
    if isinstance(error, httpx.TimeoutException):
        reason = "no answer within the time limit"
    else:
        text = _NUMBER.sub("", str(error).partition("\n")[0])
        reason = text.lower() or type(error).__name__
    return Lost(f"{server}: {reason}")


def _host(server: str) -> str:
    try:
        parts = urlsplit(server)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise BadInput(
            f"{server[:200]!r} is not a server", field="server", expected="http://HOST:PORT"
        )
    if parts.username is not None:
        raise BadInput("a name or password in the URL", field="server", expected="a key instead")
    return host


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
