"""Who is signed in: an API key in a cookie that scripts cannot read and other sites cannot send.

The cookie holds the key itself and nothing is kept on the server: revoking the key ends the
session, and any process can serve it. It is a session cookie, HttpOnly and SameSite=Strict, and
Secure where the browser came by https. The calls under `/v1` never look at it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from service.problems import Problem

COOKIE = "shardwise_key"
MAX_KEY = 200


def presented_key(request: Request) -> str | None:
    """The key of the cookie, if there is one that could be a key."""
    text = request.cookies.get(COOKIE, "")
    return text if 0 < len(text) <= MAX_KEY and text.isascii() and text.isprintable() else None


def remember_key(request: Request, response: Response, key: str) -> None:
    """Sign in with the answer."""
    response.set_cookie(
        COOKIE, key, httponly=True, samesite="strict", secure=_by_https(request), path="/"
    )


def forget_key(request: Request, response: Response) -> None:
    """Sign out with the answer."""
    response.delete_cookie(
        COOKIE, httponly=True, samesite="strict", secure=_by_https(request), path="/"
    )


def require_same_origin(request: Request) -> None:
    """A problem for a form that another site's page sent.

    Browsers name the origin of every POST, so that one without it is no browser's form and needs
    no protection from one; a client that is no browser has no cookie either.
    """
    if request.method in ("GET", "HEAD"):
        return
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    host = request.headers.get("host", "")
    if site not in ("same-origin", "none") or (
        origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    ):
        raise Problem("foreign-origin", "forms are taken from this service's own pages only")
    if origin is None and COOKIE in request.cookies:
        raise Problem("foreign-origin", "a signed-in form says which page it is from (Origin)")


def own_path(text: str) -> str:
    """Where to go after signing in: a path of this service, never another host."""
    parts = urlsplit(text)
    inside = text.startswith("/") and not text.startswith(("//", "/\\"))
    if parts.scheme or parts.netloc or not inside or any(c < " " for c in text):
        return "/"
    return text


def _by_https(request: Request) -> bool:
    # Behind a proxy that ends TLS the browser's own word is better than our scheme.
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
