"""Who is signed in: an API key, or a login's session, in a cookie that scripts cannot read.

A key's cookie holds the key itself and nothing is stored on the server: revoking the key ends the
session, and any process can serve it. It is a session cookie, HttpOnly and SameSite=Strict, and
Secure where the browser came by https.

A login's cookie holds a random secret whose hash is a row (service/store/sessions.py). It is
SameSite=Lax: the return from the provider is a navigation that another site started, for which
browsers send no Strict cookie, and so is a link in a mail. Lax cookies come with other sites'
navigations (GET, which changes nothing here) and never with their forms, which
`require_same_origin` refuses as well. Where browsers come by https the names begin with `__Host-`:
no other host of the domain and no plain http can set them.

The calls under `/v1` use neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from service.base.addresses import address_of
from service.base.problems import Problem
from service.edge.http import caller_of
from service.edge.state import state_of
from service.login.signed_in import CARRIED

if TYPE_CHECKING:
    from service.login.logins import Logins

COOKIE = "shardwise_key"
MAX_KEY = 200
SESSION_COOKIE = "shardwise_session"
ATTEMPT_COOKIE = "shardwise_sign_in"
ATTEMPT_S = 600
"""Time limit for signing in at the provider."""

_PREFIX = "__Host-"
_SECRET = 43
"""Characters of a session's secret."""


def presented_key(request: Request) -> str | None:
    """Returns the key of the cookie, if there is one that could be a key."""
    text = request.cookies.get(COOKIE, "")
    return text if 0 < len(text) <= MAX_KEY and text.isascii() and text.isprintable() else None


def remember_key(request: Request, response: Response, key: str) -> None:
    """Sets the key's cookie."""
    response.set_cookie(
        COOKIE, key, httponly=True, samesite="strict", secure=_by_https(request), path="/"
    )


def forget_key(request: Request, response: Response) -> None:
    """Deletes the key's cookie."""
    response.delete_cookie(
        COOKIE, httponly=True, samesite="strict", secure=_by_https(request), path="/"
    )


async def find_person(request: Request) -> None:
    """Puts the signed-in user of a session into the request, for the page's inner calls."""
    state, secret = state_of(request), presented_session(request)
    if state.logins is None or secret is None:
        return
    # As for keys: an unknown session is counted before the database is asked.
    known = state.logins.remembers(secret)
    if not known:
        await state.gate.count_stranger(caller_of(request))
    person = await state.logins.find(secret, address_of(request))
    if person is not None and not known:
        state.gate.uncount_stranger(caller_of(request))
    request.scope[CARRIED] = person


def presented_session(request: Request) -> str | None:
    """Returns the secret of the session's cookie, if there is one that could be a secret."""
    logins = state_of(request).logins
    if logins is None:
        return None
    text = request.cookies.get(_name(logins, SESSION_COOKIE), "")
    return text if len(text) == _SECRET and text.isascii() and text.isprintable() else None


def has_session(request: Request) -> bool:
    """Returns True if the browser has a cookie that may sign it in."""
    names = (COOKIE, SESSION_COOKIE, _PREFIX + SESSION_COOKIE)
    return any(name in request.cookies for name in names)


def remember_session(logins: Logins, response: Response, secret: str) -> None:
    """Sets the session's cookie."""
    _set(logins, response, SESSION_COOKIE, secret)


def forget_session(logins: Logins, response: Response) -> None:
    """Deletes the session's cookie."""
    _set(logins, response, SESSION_COOKIE, "", 0)


def remember_attempt(logins: Logins, response: Response, cookie: str) -> None:
    """Binds an attempt to sign in to this browser."""
    _set(logins, response, ATTEMPT_COOKIE, cookie, ATTEMPT_S)


def forget_attempt(logins: Logins, response: Response) -> None:
    """Ends the attempt, whatever its outcome: its state is valid for one answer."""
    _set(logins, response, ATTEMPT_COOKIE, "", 0)


def presented_attempt(logins: Logins, request: Request) -> str:
    """Returns the attempt's cookie, or an empty string."""
    return request.cookies.get(_name(logins, ATTEMPT_COOKIE), "")


def _set(
    logins: Logins, response: Response, name: str, value: str, max_age: int | None = None
) -> None:
    response.set_cookie(
        _name(logins, name), value, max_age=max_age, httponly=True, samesite="lax",
        secure=_is_https(logins), path="/",
    )  # fmt: skip


def _name(logins: Logins, name: str) -> str:
    return (_PREFIX if _is_https(logins) else "") + name


def _is_https(logins: Logins) -> bool:
    return logins.public_url.startswith("https:")


def require_same_origin(request: Request) -> None:
    """Raises `Problem` for a form that another site's page sent.

    Browsers name the origin of every POST, so a POST without it is not a browser's form and needs
    no such protection; a client that is not a browser has no cookie either.
    """
    if request.method in ("GET", "HEAD"):
        return
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    host = request.headers.get("host", "")
    if site not in ("same-origin", "none") or (
        origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    ):
        raise Problem("foreign-origin", "forms are accepted only from this service's own pages")
    if origin is None and has_session(request):
        raise Problem("foreign-origin", "a form with a session must name its page (Origin)")


def own_path(text: str) -> str:
    """Returns where to go after signing in: a path of this service, never another host."""
    parts = urlsplit(text)
    inside = text.startswith("/") and not text.startswith(("//", "/\\"))
    if parts.scheme or parts.netloc or not inside or any(c < " " for c in text):
        return "/"
    return text


def _by_https(request: Request) -> bool:
    # Behind a proxy that terminates TLS, the browser's Origin is more reliable than our scheme.
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
