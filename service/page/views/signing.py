"""Signing in with an API key, the link to the identity provider, and signing out."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import Request, Response

from service.base.addresses import address_of
from service.base.logs import REQUEST_ID
from service.base.problems import Problem
from service.edge.http import caller_of
from service.edge.state import state_of
from service.page.inner import page_caller
from service.page.render import redirect, respond
from service.page.session import (
    MAX_KEY,
    forget_key,
    forget_session,
    own_path,
    presented_key,
    presented_session,
    remember_key,
)

MAX_FORM_BYTES = 4096


async def show(request: Request) -> Response:
    """Returns the form, unless the service is open or the key in force; deletes a stale cookie."""
    where = own_path(request.query_params.get("next", "/"))
    try:
        await state_of(request).gate.admit(page_caller(request), "read")
    except Problem as problem:
        if problem.slug != "unauthenticated":
            raise
        stale_session = presented_session(request) is not None
        if presented_key(request) is not None or stale_session:
            response = redirect(str(request.url.replace(scheme="", netloc="")))
            forget_key(request, response)
            if stale_session and (logins := state_of(request).logins) is not None:
                forget_session(logins, response)
            return response
        return await sign_in_page(request, where, None)
    return redirect(where)


async def sign_in_page(
    request: Request, where: str, error: str | None, *, status: int = 200
) -> Response:
    """Returns the form for a key, with a link to the identity provider if there is one."""
    logins = state_of(request).logins
    left = logins is not None and request.query_params.get("left") == "1"
    return await respond(
        request,
        "sign_in.html",
        status=status,
        where=where,
        error=error,
        provider=None if logins is None else logins.name,
        # By the public address, so that the provider's answer reaches the host of the cookie.
        start="" if logins is None else f"{logins.public_url}/sign-in/start?{_next(where)}",
        left=left,
        sign_out=await logins.sign_out_url() if logins is not None and left else None,
    )


def _next(where: str) -> str:
    return urlencode({"next": where})


async def take(request: Request) -> Response:
    """Signs in if the key is in force, else returns the form with the reason."""
    await state_of(request).gate.admit_anyone(caller_of(request))
    form = await small_form(request)
    key, where = form.get("key", "").strip(), own_path(form.get("next", "/"))
    error = "no key was given"
    if key and len(key) <= MAX_KEY and key.isascii() and key.isprintable():
        try:
            await state_of(request).gate.admit(page_caller(request, key), "read")
        except Problem as problem:
            if problem.slug not in ("unauthenticated", "forbidden"):
                raise
            error = problem.detail
        else:
            response = redirect(where)
            await _leave_session(request, response)
            remember_key(request, response, key)
            return response
    elif key:
        error = "this is not a key"
    return await sign_in_page(request, where, error, status=401)


async def leave(request: Request) -> Response:
    """Signs out."""
    left = await _leave_session(request, response := redirect("/sign-in"))
    if left:
        response.headers["Location"] = "/sign-in?left=1"
    forget_key(request, response)
    return response


async def _leave_session(request: Request, response: Response) -> bool:
    """Ends a login's session. Returns whether there was one."""
    logins, secret = state_of(request).logins, presented_session(request)
    if logins is None or secret is None:
        return False
    await logins.close(secret, REQUEST_ID.get(), address_of(request))
    forget_session(logins, response)
    return True


async def small_form(request: Request) -> dict[str, str]:
    """Returns the fields of a form from an unknown user, at most `MAX_FORM_BYTES`."""
    length = request.headers.get("content-length", "")
    if not (length.isdigit() and int(length) <= MAX_FORM_BYTES):
        raise Problem("too-large", f"at most {MAX_FORM_BYTES} bytes are read")
    form = await request.form(max_files=0, max_fields=10)
    return {name: value for name, value in form.multi_items() if isinstance(value, str)}
