"""Templates and the headers of pages.

Content-Security-Policy: scripts only from our own files, styles from them and one element with a
nonce, into which Plotly writes its rules; nothing from any other host, no frames, no plug-ins.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from service.edge.http import lane_of
from service.edge.state import state_of
from service.login.signed_in import carried
from service.page import units
from service.page.addresses import profile_address
from service.page.assets import address
from service.page.manual import ROOT, topics_of
from service.page.session import has_session
from service.store.keys import Principal
from shardwise import __version__
from shardwise.documents.common import not_searched_text

P = ParamSpec("P")
T = TypeVar("T")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


@cache
def environment() -> Environment:
    """Returns the templates; an undefined name is an error, not an empty string."""
    templates = Environment(
        loader=PackageLoader("service.page", "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in units.FILTERS:
        templates.filters[name] = getattr(units, name)
    templates.filters["breakable"] = breakable
    templates.filters["searched_text"] = not_searched_text
    templates.filters["profile_address"] = profile_address
    templates.globals.update(asset=address, version=__version__)
    return templates


async def respond(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Returns a page, rendered off the event loop."""
    return await in_thread(request, page, request, template, status, values)


async def in_thread(
    request: Request, act: Callable[P, T], *args: P.args, **keywords: P.kwargs
) -> T:
    """Returns the result of `act`, run in one of the page's threads; each tenant has a share."""
    return await state_of(request).pools.pages.run(lane_of(request), act, *args, **keywords)


def page(request: Request, template: str, status: int, values: dict[str, Any]) -> Response:
    """Returns a page with its headers."""
    nonce = secrets.token_urlsafe(16)
    topics = topics_of(template, state_of(request).docs)
    text = (
        environment()
        .get_template(template)
        .render(
            **values,
            nonce=nonce,
            administers=administers(request),
            signed_in=has_session(request),
            person=carried(request),
            path=request.url.path,
            topics=topics,
            manual=ROOT if "index.html" in state_of(request).docs else None,
        )
    )
    policy = _POLICY.format(nonce=nonce)
    headers = {**HEADERS, "Content-Security-Policy": policy}
    return Response(text, status, headers, "text/html; charset=utf-8")


def administers(request: Request) -> list[tuple[str, str]]:
    """Returns the administration pages that the principal of this request may open."""
    who = getattr(request.state, "principal", None)
    if not isinstance(who, Principal) or not who.may("admin"):
        return []
    pages = [("/keys", "Keys"), ("/audit", "Audit")]
    return [*pages, ("/admin", "Tenants")] if who.may("operator") else pages


def breakable(name: str) -> Markup:
    """Returns a long name with line breaks allowed after dots, commas, underscores and hyphens."""
    parts = re.split(r"(?<=[.,_-])", name)
    return Markup("<wbr>").join(escape(part) for part in parts)


def redirect(where: str) -> Response:
    """Returns 303 (See Other), the response to an accepted form."""
    return Response(status_code=303, headers={"Location": where, "Cache-Control": "no-store"})
