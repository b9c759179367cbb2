"""JSON Web Tokens of the provider: signature, issuer, audience, times, nonce.

Only asymmetric signatures are accepted: with `none` or an HMAC anyone with the public key could
sign. A token's own header decides only which of the provider's keys is tried.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from authlib.oauth2.claims import JWTClaims
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jws import JWSRegistry

from service.base.base64url import from_base64url
from service.login.provider import Provider

log = logging.getLogger(__name__)
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
LEEWAY_S = 60
"""How far the provider's clock may be from this host's."""

MAX_TOKEN = 16_384
MAX_TRIED = 10
"""Keys that are tried for a token that names none."""


class TokenRefused(Exception):
    """A token is not accepted; the message contains nothing of it."""


def is_jwt(text: str) -> bool:
    """Returns True for what has the form of a signed token."""
    return text.count(".") == 2 and not text.startswith("sw_") and len(text) <= MAX_TOKEN


async def id_token_claims(
    provider: Provider, token: str, client_id: str, nonce: str, access_token: str | None
) -> dict[str, Any]:
    """Returns the claims of an ID token for us (OpenID Connect Core 3.1.3.7).

    Raises TokenRefused.
    """
    header, claims = await _verified(provider, token)
    params = {"nonce": nonce, "client_id": client_id, "access_token": access_token}
    options: Any = _options(provider.issuer, client_id)
    _validate(CodeIDToken(claims, header, options, params))
    return claims


async def access_token_claims(provider: Provider, token: str, audience: str) -> dict[str, Any]:
    """Returns the claims of an access token for our audience. Raises TokenRefused."""
    header, claims = await _verified(provider, token)
    options: Any = {**_options(provider.issuer, audience), "exp": {"essential": True}}
    _validate(JWTClaims(claims, header, options))
    return claims


def _options(issuer: str, audience: str) -> dict[str, Any]:
    return {
        "iss": {"essential": True, "value": issuer},
        "aud": {"essential": True, "value": audience},
        "sub": {"essential": True},
    }


def _validate(claims: JWTClaims) -> None:
    try:
        claims.validate(leeway=LEEWAY_S)
    except ExpiredTokenError:
        raise TokenRefused("the token has expired") from None
    except JoseError as error:
        name = getattr(error, "claim", None) or error.error
        raise TokenRefused(f"the token is not for this service: {name}") from None


async def _verified(provider: Provider, token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns header and claims of a token that the provider signed."""
    header = _header(token)
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenRefused("the token is not signed by an accepted algorithm")
    if key_id is not None and not isinstance(key_id, str):
        raise TokenRefused("the token's key id is not readable")
    # Unknown parameters are to be ignored (RFC 7515 4); the library handles `crit`.
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    for key in (await provider.keys(key_id))[:MAX_TRIED]:
        if key.alg not in (None, algorithm):
            continue
        try:
            decoded = jwt.decode(token, key, registry=registry)
        except (JoseError, ValueError, TypeError):
            continue
        return decoded.header, decoded.claims
    raise TokenRefused("the token is not signed by the identity provider")


def _header(token: str) -> dict[str, Any]:
    if not is_jwt(token):
        raise TokenRefused("the token is not a signed JSON Web Token")
    part = token.partition(".")[0]
    try:
        text = from_base64url(part)
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise TokenRefused("the token's header is not readable") from None
