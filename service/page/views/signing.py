"""Signing in with an API key, and out."""

from __future__ import annotations

from fastapi import Request, Response

from service.page.inner import inner_request
from service.page.render import redirect, respond
from service.page.session import MAX_KEY, forget_key, own_path, presented_key, remember_key
from service.problems import Problem
from service.state import state_of

MAX_FORM_BYTES = 4096


async def show(request: Request) -> Response:
    """The form, unless the service is open or the key in force; a key that is not is forgotten."""
    where = own_path(request.query_params.get("next", "/"))
    try:
        await state_of(request).gate.admit(inner_request(request), "read")
    except Problem as problem:
        if problem.slug != "unauthenticated":
            raise
        if presented_key(request) is not None:
            answer = redirect(str(request.url.replace(scheme="", netloc="")))
            forget_key(request, answer)
            return answer
        return await respond(request, "sign_in.html", where=where, error=None)
    return redirect(where)


async def take(request: Request) -> Response:
    """Sign in, if the key is in force."""
    form = await _small_form(request)
    key, where = form.get("key", "").strip(), own_path(form.get("next", "/"))
    error = "no key was given"
    if key and len(key) <= MAX_KEY and key.isascii() and key.isprintable():
        try:
            await state_of(request).gate.admit(inner_request(request, key=key), "read")
        except Problem as problem:
            if problem.slug not in ("unauthenticated", "forbidden"):
                raise
            error = problem.detail
        else:
            answer = redirect(where)
            remember_key(request, answer, key)
            return answer
    elif key:
        error = "this is no key"
    return await respond(request, "sign_in.html", status=401, where=where, error=error)


async def leave(request: Request) -> Response:
    """Sign out."""
    answer = redirect("/sign-in")
    forget_key(request, answer)
    return answer


async def _small_form(request: Request) -> dict[str, str]:
    """The form of somebody who is not known yet: a few hundred bytes, never more."""
    length = request.headers.get("content-length", "")
    if not (length.isdigit() and int(length) <= MAX_FORM_BYTES):
        raise Problem("too-large", f"at most {MAX_FORM_BYTES} bytes are read")
    form = await request.form(max_files=0, max_fields=10)
    return {name: value for name, value in form.multi_items() if isinstance(value, str)}
