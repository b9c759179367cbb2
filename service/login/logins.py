"""Logins of one service process: to the provider and back, sessions, access tokens."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic, time
from typing import Any
from urllib.parse import quote_plus

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from service.base.pools import Pools
from service.base.problems import Problem
from service.base.recent import remember
from service.base.settings import Settings
from service.login.attempt import Attempt
from service.login.fetch import Fetcher, unreachable
from service.login.identity import Identity, actor_of, groups_of, identity_of, key_id_of
from service.login.provider import Provider
from service.login.rules import Rules, read_rules
from service.login.signed_in import TENANT_HEADER, SignedIn
from service.login.tokens import TokenRefused, access_token_claims, id_token_claims, is_jwt
from service.store.database import Database
from service.store.keys import Principal, make_tenant
from service.store.records import record
from service.store.sessions import close_session, find_session, move_session, open_session
from service.store.tables import LoginSession, Tenant

log = logging.getLogger(__name__)
CALLBACK = "/sign-in/callback"
MAX_REMEMBERED = 10_000
MAX_CODE = 4096


class LoginRefused(Exception):
    """A sign-in that does not lead to a session, in words for the person."""


class Logins:
    """The parts of sign-in: provider, rules, sessions. Created once, if there is an issuer.

    `who` names the share of the threads that a call takes: its client's address.
    """

    def __init__(self, settings: Settings, database: Database, pools: Pools) -> None:
        self.name = settings.oidc_name
        self.public_url = settings.public_url.rstrip("/")
        self._settings = settings
        self._database = database
        self._rules: Rules = read_rules(settings.oidc_rules_file)
        self._lookups, self._changes = pools.lookups, pools.logins
        self._fetch = Fetcher()
        # A fetcher of its own: sign-ins that hang must not block look-ups of metadata and keys.
        self.provider = Provider(settings.oidc_issuer, Fetcher())
        self._sessions: OrderedDict[bytes, tuple[float, SignedIn]] = OrderedDict()
        self._tokens: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()

    @property
    def redirect_uri(self) -> str:
        """The URL to which the provider sends people back, from settings, not from a Host."""
        return self.public_url + CALLBACK

    async def authorization_url(self, attempt: Attempt) -> str:
        """Returns the URL at which the browser signs in."""
        metadata = await self.provider.metadata()
        return str(
            prepare_grant_uri(
                metadata["authorization_endpoint"],
                client_id=self._settings.oidc_client_id,
                response_type="code",
                redirect_uri=self.redirect_uri,
                scope=self._settings.oidc_scopes,
                state=attempt.state,
                nonce=attempt.nonce,
                code_challenge=create_s256_code_challenge(attempt.verifier),
                code_challenge_method="S256",
            )
        )

    async def sign_out_url(self) -> str | None:
        """Returns the URL that ends the provider's own session; None if it does not offer one."""
        try:
            metadata = await self.provider.metadata()
        except Problem:
            return None
        end = metadata.get("end_session_endpoint")
        if not isinstance(end, str):
            return None
        query = {
            "client_id": self._settings.oidc_client_id,
            "post_logout_redirect_uri": f"{self.public_url}/sign-in",
        }
        return f"{end}{'&' if '?' in end else '?'}" + "&".join(
            f"{name}={quote_plus(value)}" for name, value in query.items()
        )

    async def finish(self, attempt: Attempt, query: Mapping[str, str]) -> Identity:
        """Returns who signed in, from the query with which the provider sent the browser back.

        Raises LoginRefused, or a problem `unavailable` if the provider cannot be asked.
        """
        metadata = await self.provider.metadata()
        sent_by = query.get("iss")
        promised = metadata.get("authorization_response_iss_parameter_supported") is True
        if sent_by != self.provider.issuer and (sent_by is not None or promised):
            raise LoginRefused("the answer is from another identity provider")
        if error := query.get("error"):
            raise LoginRefused(f"{self.name} said: {error[:100]}")
        code = query.get("code", "")
        if not 0 < len(code) <= MAX_CODE:
            raise LoginRefused("the answer holds no code")
        tokens = await self._exchange(metadata, code, attempt)
        try:
            return await self._identity(metadata, tokens, attempt.nonce)
        except TokenRefused as error:
            log.warning("a login was refused: %s", error)
            raise LoginRefused(str(error)) from None

    async def _exchange(
        self, metadata: dict[str, Any], code: str, attempt: Attempt
    ) -> dict[str, Any]:
        settings = self._settings
        client, secret = settings.oidc_client_id, settings.oidc_client_secret
        form = {
            "grant_type": "authorization_code",
            "redirect_uri": self.redirect_uri,
            "code": code,
            "code_verifier": attempt.verifier,
        }
        auth = None
        if not secret:
            form |= {"client_id": client}
        elif _by_post(settings.oidc_client_auth, metadata):
            form |= {"client_id": client, "client_secret": secret}
        else:
            # RFC 6749 2.3.1: both are form-encoded.
            auth = (quote_plus(client), quote_plus(secret))
        status, tokens = await self._fetch(metadata["token_endpoint"], form=form, auth=auth)
        if status != 200:
            said = str(tokens.get("error", status))[:100]
            log.warning("a login was refused: the token endpoint said %s", said)
            raise LoginRefused(f"{self.name} did not take the code: {said}")
        return tokens

    async def _identity(
        self, metadata: dict[str, Any], tokens: dict[str, Any], nonce: str
    ) -> Identity:
        id_token, access_token = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(id_token, str):
            raise TokenRefused("there is no ID token")
        access_token = access_token if isinstance(access_token, str) else None
        client = self._settings.oidc_client_id
        claims = await id_token_claims(self.provider, id_token, client, nonce, access_token)
        if groups_of(claims, self._settings.oidc_groups_claim) is None and access_token:
            claims = {**await self._user_info(metadata, access_token, claims["sub"]), **claims}
        return identity_of(claims, self._settings.oidc_groups_claim)

    async def _user_info(
        self, metadata: dict[str, Any], access_token: str, subject: str
    ) -> dict[str, Any]:
        """Returns the provider's further claims of the same subject (OpenID Connect Core 5.3)."""
        endpoint = metadata.get("userinfo_endpoint")
        if endpoint is None:
            return {}
        headers = {"Authorization": f"Bearer {access_token}"}
        status, user_info = await self._fetch(endpoint, headers=headers)
        if status != 200:
            raise unreachable(f"no user info, status {status}")
        if user_info.get("sub") != subject:
            raise TokenRefused("the user info is about another person")
        return user_info

    def tenants(self, groups: tuple[str, ...] | list[str]) -> dict[str, frozenset[str]]:
        """Returns the scopes by tenant of a person with these groups."""
        return self._rules.tenants(groups)

    async def open(self, identity: Identity, request_id: str, replaces: str | None) -> str:
        """Opens a session in the first tenant of the person's groups. Returns the cookie's secret.

        `replaces` is the secret of the browser's previous session, which ends.
        """

        def run() -> str:
            tenant = next(iter(self.tenants(identity.groups)))
            with self._database.write() as session:
                if replaces is not None:
                    close_session(session, replaces)
                known = self._rules.known(identity.groups)
                secret = open_session(
                    session,
                    identity.subject,
                    identity.name,
                    known,
                    tenant,
                    self._settings.session_s,
                )
                _record(session, tenant, identity.subject, identity.name, "create", request_id)
                return secret

        return await self._changes.run(identity.subject, run)

    def remembers(self, secret: str) -> bool:
        """Returns True if the secret was a session's when it was last looked up."""
        return _digest(secret) in self._sessions

    async def find(self, secret: str, who: str) -> SignedIn | None:
        """Returns the person whose session a cookie's secret opens; None if none is in force."""
        digest = _digest(secret)
        known = self._sessions.get(digest)
        if known is not None and known[0] > monotonic():
            return known[1]
        entry = await self._lookups.run(who, self._find, secret)
        if entry is None:
            self._sessions.pop(digest, None)
            return None
        left_s, signed_in = entry
        until = monotonic() + min(self._settings.auth_cache_s, left_s)
        remember(self._sessions, digest, (until, signed_in), MAX_REMEMBERED)
        return signed_in

    def _find(self, secret: str) -> tuple[float, SignedIn] | None:
        with self._database.read() as session:
            current = find_session(session, secret)
        if current is None:
            return None
        row, limits, left_s = current
        tenants = self.tenants(row.groups)
        if row.tenant_id not in tenants:
            return None  # the rules have changed since
        scopes = tenants[row.tenant_id]
        principal = _principal(row.tenant_id, scopes, limits, row.subject, row.name)
        return left_s, SignedIn(principal, row.name or row.subject, tuple(tenants))

    async def move(self, secret: str, tenant: str, request_id: str, who: str) -> str | None:
        """Moves a session to another tenant of its person. Returns the new secret, or None."""

        def run() -> str | None:
            with self._database.write() as session:
                current = find_session(session, secret)
                if current is None or tenant not in self.tenants(current[0].groups):
                    return None
                row = current[0]
                fresh = move_session(session, secret, tenant)
                _record(session, tenant, row.subject, row.name, "move", request_id)
                return fresh

        self._sessions.pop(_digest(secret), None)
        return await self._changes.run(who, run)

    async def close(self, secret: str, request_id: str, who: str) -> None:
        """Ends the session of a secret, if there is one."""

        def run() -> None:
            with self._database.write() as session:
                row = close_session(session, secret)
                if row is not None:
                    _record(session, row.tenant_id, row.subject, row.name, "delete", request_id)

        self._sessions.pop(_digest(secret), None)
        await self._changes.run(who, run)

    def takes(self, text: str) -> bool:
        """Returns True for what may be an access token, if these are accepted besides keys."""
        return bool(self._settings.oidc_audience) and is_jwt(text)

    async def principal_of(self, token: str, tenant: str | None, who: str) -> Principal:
        """Returns who presents an access token, in a tenant, or in the only one there is.

        Raises a problem: `unauthenticated` for a token that is not accepted, `forbidden` for
        one without that tenant or with several and none named.
        """
        digest = _digest(f"{tenant or ''} {token}")
        known = self._tokens.get(digest)
        if known is not None and known[0] > monotonic():
            return known[1]
        left_s, identity = await self._verified(token)
        tenants = self.tenants(identity.groups)
        if tenant is None and len(tenants) == 1:
            tenant = next(iter(tenants))
        if tenant is None or tenant not in tenants:
            raise Problem("forbidden", _which(tenant, list(tenants)))
        limits = await self._lookups.run(who, self._limits, tenant)
        if limits is None:
            limits = await self._changes.run(who, self._make, tenant)
        principal = _principal(tenant, tenants[tenant], limits, identity.subject, identity.name)
        until = monotonic() + min(self._settings.auth_cache_s, left_s)
        remember(self._tokens, digest, (until, principal), MAX_REMEMBERED)
        return principal

    async def _verified(self, token: str) -> tuple[float, Identity]:
        """Returns for how many seconds a token is valid, and its identity."""
        try:
            claims = await access_token_claims(self.provider, token, self._settings.oidc_audience)
            identity = identity_of(claims, self._settings.oidc_groups_claim)
        except TokenRefused as error:
            headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            raise Problem("unauthenticated", str(error), headers=headers) from None
        return max(0.0, claims["exp"] - time()), identity

    def _limits(self, tenant: str) -> dict[str, Any] | None:
        """Returns the tenant's own limits; None if it does not exist yet."""
        with self._database.read() as session:
            row = session.get(Tenant, tenant)
        return None if row is None else row.limits

    def _make(self, tenant: str) -> dict[str, Any]:
        """Creates a tenant when a person first asks for it. Returns its limits."""
        with self._database.write() as session:
            make_tenant(session, tenant)
            return session.get_one(Tenant, tenant).limits


def _by_post(how: str, metadata: dict[str, Any]) -> bool:
    """Returns whether the client's secret goes into the form; Basic is every provider's default."""
    if how != "auto":
        return how == "post"
    methods = metadata.get("token_endpoint_auth_methods_supported")
    offered = methods if isinstance(methods, list) else []
    return "client_secret_post" in offered and "client_secret_basic" not in offered


def _principal(
    tenant: str, scopes: frozenset[str], limits: dict[str, Any], subject: str, name: str
) -> Principal:
    return Principal(
        tenant, key_id_of(subject), scopes, None, limits, actor=actor_of(subject, name)
    )


def _record(
    session: Any, tenant: str, subject: str, name: str, action: str, request_id: str
) -> None:
    record(
        session,
        tenant=tenant,
        key_id=key_id_of(subject),
        actor=actor_of(subject, name),
        request_id=request_id,
        action=f"sessions.{action}",
        target=LoginSession.__tablename__,
        status=200,
    )


def _which(tenant: str | None, tenants: list[str]) -> str:
    if not tenants:
        return "none of the token's groups has a tenant here"
    if tenant is None:
        return f"the token is of several tenants: name one in the header {TENANT_HEADER}"
    return f"the token is not of the tenant {tenant[:80]!r}"


def _digest(text: str) -> bytes:
    """Returns the key under which a secret is remembered, since the secret itself is not kept."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
