"""An OpenID provider in the test's own process: a real HTTP server that also answers wrongly.

It does what a provider does (registered redirect URIs, codes for one use, PKCE, client secrets) and
has handles for what none should do: `forge` makes the ID token, `extra` are parameters of the
redirect, and requests to a path in `hold` wait for its event. A provider that others wrote is in
`test_login_canaille.py`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from harness.service.service_harness import Service, free_port

CLIENT, SECRET = "shardwise-test", "s3cret of the client/%"
AUDIENCE = "https://shardwise.test/api"
Forge = Callable[[dict[str, Any], RSAKey], str]


def signed(claims: dict[str, Any], key: RSAKey) -> str:
    """Returns a token as it should be."""
    return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)


class OidcProvider:
    """`people` maps a user name to further claims, such as `groups`."""

    def __init__(self, people: dict[str, dict[str, Any]], host: str = "127.0.0.1") -> None:
        self.people = people
        self.key = RSAKey.generate_key(2048, auto_kid=True)
        self.redirect_uris: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.forge: Forge = signed
        self.extra: dict[str, str] = {}
        self.hold: dict[str, threading.Event] = {}
        self.groups_in_token = True
        self._codes: dict[str, dict[str, str]] = {}
        self._access: dict[str, str] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._get(self)

            def do_POST(self) -> None:
                provider._post(self)

            def log_message(self, *arguments: Any) -> None:
                """Tests read no access log."""

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.issuer = f"http://{host}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def service(self, folder: Path, rules: str, **variables: str) -> Iterator[Service]:
        """Starts a service whose people sign in here; it is a client that this provider knows."""
        running = with_logins(folder, self.issuer, rules, free_port(), **variables)
        self.redirect_uris.add(f"{running.url}/sign-in/callback")
        try:
            yield running
        finally:
            running.stop()

    def be_good(self) -> None:
        """Undoes what a test has changed."""
        self.forge, self.extra, self.groups_in_token = signed, {}, True
        for event in self.hold.values():
            event.set()
        self.hold = {}

    def claims(self, user: str, audience: str, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        return {
            "iss": self.issuer, "sub": user, "aud": audience, "iat": now, "exp": now + 300,
            "email": f"{user}@example.org", **self.people[user], **more,
        }  # fmt: skip

    def access_token(self, user: str, audience: str = AUDIENCE, **more: Any) -> str:
        """Returns what a program presents as its Bearer."""
        return signed(self.claims(user, audience, **more), self.key)

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._asked_for(parts.path)
        if parts.path == "/.well-known/openid-configuration":
            _json(handler, self._metadata())
        elif parts.path == "/jwks":
            _json(handler, {"keys": [self.key.as_dict(private=False)]})
        elif parts.path == "/authorize":
            self._ask(handler, query)
        elif parts.path == "/userinfo":
            token = handler.headers.get("Authorization", "").removeprefix("Bearer ")
            user = self._access[token]
            _json(handler, {"sub": user, "email": f"{user}@example.org", **self.people[user]})
        elif parts.path == "/end":
            _send(handler, 200, "text/html", b"<title>gone</title><p>You are signed out.</p>")
        else:
            _send(handler, 404, "text/plain", b"")

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length", "0"))
        form = {n: v[0] for n, v in parse_qs(handler.rfile.read(length).decode()).items()}
        self._asked_for(handler.path)
        if handler.path == "/authorize":
            self._grant(handler, form)
        elif handler.path == "/token":
            self._token(handler, form)

    def _asked_for(self, path: str) -> None:
        self.asked[path] += 1
        if path in self.hold:
            self.hold[path].wait(120)

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/jwks",
            "end_session_endpoint": f"{self.issuer}/end",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }

    def _ask(self, handler: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        fine = (
            query.get("response_type") == "code"
            and query.get("client_id") == CLIENT
            and query.get("redirect_uri") in self.redirect_uris
            and query.get("code_challenge_method") == "S256"
            and "openid" in query.get("scope", "").split()
            and query.get("nonce")
        )
        if not fine:
            _send(handler, 400, "text/plain", b"not a request of a registered client")
            return
        hidden = "".join(
            f'<input type="hidden" name="{html.escape(n)}" value="{html.escape(v)}">'
            for n, v in query.items()
        )
        page = (
            f'<html lang="en"><title>Who are you?</title><form method="post" action="/authorize">'
            f'{hidden}<label>User <input name="user"></label><button>Log in</button></form></html>'
        )
        _send(handler, 200, "text/html", page.encode())

    def _grant(self, handler: BaseHTTPRequestHandler, form: dict[str, str]) -> None:
        code = secrets.token_urlsafe(16)
        self._codes[code] = form
        given = {"state": form["state"], "iss": self.issuer, "code": code, **self.extra}
        query = urlencode({name: value for name, value in given.items() if value})
        handler.send_response(303)
        handler.send_header("Location", f"{form['redirect_uri']}?{query}")
        handler.end_headers()

    def _token(self, handler: BaseHTTPRequestHandler, form: dict[str, str]) -> None:
        granted = self._codes.pop(form.get("code", ""), None)
        scheme, _, text = handler.headers.get("Authorization", "").partition(" ")
        client, _, secret = base64.b64decode(text).decode().partition(":")
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if (
            granted is None
            or (scheme, unquote_plus(client), unquote_plus(secret)) != ("Basic", CLIENT, SECRET)
            or granted["redirect_uri"] != form.get("redirect_uri")
            or granted["code_challenge"] != base64.urlsafe_b64encode(challenge).decode().rstrip("=")
        ):
            _json(handler, {"error": "invalid_grant"}, 400)
            return
        access = secrets.token_urlsafe(16)
        self._access[access] = granted["user"]
        claims = self.claims(granted["user"], CLIENT, nonce=granted["nonce"])
        if not self.groups_in_token:
            claims.pop("groups", None)
        token = self.forge(claims, self.key)
        _json(handler, {"access_token": access, "token_type": "Bearer", "id_token": token})


def _json(handler: BaseHTTPRequestHandler, document: Any, status: int = 200) -> None:
    _send(handler, status, "application/json", json.dumps(document).encode())


def _send(handler: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def with_logins(folder: Path, issuer: str, rules: str, port: int, **variables: str) -> Service:
    """Starts a service on loopback without a key, where people of the issuer sign in."""
    (folder / "rules.toml").write_text(rules)
    settings = {
        "public_url": f"http://127.0.0.1:{port}",
        "oidc_issuer": issuer,
        "oidc_client_id": CLIENT,
        "oidc_rules_file": str(folder / "rules.toml"),
        **variables,
    }
    return Service(folder, "--port", str(port), **settings)
