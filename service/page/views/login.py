"""Signing in at the identity provider: redirect, return, and the choice of a tenant."""

from __future__ import annotations

import hmac
import logging
from urllib.parse import urlencode

from fastapi import Request, Response

from service.base.addresses import address_of
from service.base.logs import REQUEST_ID
from service.base.problems import Problem
from service.edge.http import caller_of
from service.edge.state import state_of
from service.login.attempt import new_attempt, read_attempt
from service.login.signed_in import carried
from service.page.inner import page_caller
from service.page.render import redirect, respond
from service.page.session import (
    forget_attempt,
    forget_key,
    own_path,
    presented_attempt,
    presented_session,
    remember_attempt,
    remember_session,
)
from service.page.views.signing import sign_in_page, small_form

log = logging.getLogger(__name__)
MAX_SHOWN = 20
"""Groups that are shown to a user without a tenant."""


async def start(request: Request) -> Response:
    """Redirects to the provider, with a new attempt in a cookie."""
    await state_of(request).gate.admit_anyone(caller_of(request))
    logins = state_of(request).logins
    if logins is None:
        raise Problem("not-found", "there is no identity provider to sign in at")
    attempt = new_attempt(own_path(request.query_params.get("next", "/")))
    response = redirect(await logins.authorization_url(attempt))
    remember_attempt(logins, response, attempt.cookie())
    return response


async def finish(request: Request) -> Response:
    """Handles the return from the provider: starts a session, or shows why not."""
    from service.login.logins import LoginRefused

    await state_of(request).gate.admit_anyone(caller_of(request))
    logins = state_of(request).logins
    if logins is None:
        raise Problem("not-found", "there is no identity provider to sign in at")
    attempt = read_attempt(presented_attempt(logins, request))
    state = request.query_params.get("state", "")
    if attempt is None or not hmac.compare_digest(state.encode(), attempt.state.encode()):
        # The cookie stays: a forged answer must not end an attempt in progress.
        error = "this sign-in was not begun in this browser, or took too long. Try again"
        return await sign_in_page(request, "/", error, status=400)
    where = own_path(attempt.where)
    try:
        identity = await logins.finish(attempt, request.query_params)
    except LoginRefused as refused:
        response = await sign_in_page(request, where, str(refused), status=401)
        forget_attempt(logins, response)
        return response
    tenants = logins.tenants(identity.groups)
    if not tenants:
        log.warning("a login was refused: none of %d groups has a tenant", len(identity.groups))
        response = await respond(
            request,
            "no_tenant.html",
            status=403,
            who=identity.name or identity.subject,
            provider=logins.name,
            groups=[group[:200] for group in identity.groups[:MAX_SHOWN]],
            more=max(0, len(identity.groups) - MAX_SHOWN),
        )
        forget_attempt(logins, response)
        return response
    secret = await logins.open(identity, REQUEST_ID.get(), presented_session(request))
    response = redirect(where if len(tenants) == 1 else _choice(where))
    remember_session(logins, response, secret)
    forget_attempt(logins, response)
    forget_key(request, response)
    return response


async def show_tenants(request: Request) -> Response:
    """Returns the tenants that the user may choose from."""
    await state_of(request).gate.admit(page_caller(request), "read")
    person = carried(request)
    if person is None:
        raise Problem("not-found", "a key belongs to a single tenant")
    where = own_path(request.query_params.get("next", "/"))
    return await respond(request, "choose-tenant.html", where=where)


async def take_tenant(request: Request) -> Response:
    """Continues in another tenant, with a new session's secret."""
    logins, secret = state_of(request).logins, presented_session(request)
    if logins is None or secret is None or carried(request) is None:
        raise Problem("unauthenticated", "not signed in")
    form = await small_form(request)
    tenant, who = form.get("tenant", ""), address_of(request)
    fresh = await logins.move(secret, tenant, REQUEST_ID.get(), who)
    if fresh is None:
        raise Problem("not-found", "there is no such tenant to choose")
    response = redirect(own_path(form.get("next", "/")))
    remember_session(logins, response, fresh)
    return response


def _choice(where: str) -> str:
    return f"/tenant?{urlencode({'next': where})}"
