"""A route of the page: accepts forms only from our own pages, shows errors as pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.routing import APIRoute

from service.base.logs import REQUEST_ID
from service.base.problems import Problem, problem_of
from service.page.render import redirect, respond
from service.page.session import find_person, require_same_origin
from shardwise.errors import ShardwiseError

Handle = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """A page's route; redirects to the sign-in page if no one is signed in."""

    def get_route_handler(self) -> Handle:
        """Returns the endpoint, wrapped in checks and error pages."""
        endpoint = super().get_route_handler()

        async def handle(request: Request) -> Response:
            # Set here, so that the rendered page sees the principal of the inner calls.
            request.scope.setdefault("state", {})
            try:
                require_same_origin(request)
                await find_person(request)
                return await endpoint(request)
            except ShardwiseError as error:
                return await error_page(request, problem_of(error))

        return handle


async def error_page(request: Request, problem: Problem) -> Response:
    """Returns a page about the problem; `unauthenticated` redirects to the sign-in page."""
    if problem.slug == "unauthenticated":
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        back = f"?next={quote(here, safe='')}" if request.method == "GET" and here != "/" else ""
        return redirect(f"/sign-in{back}")
    response = await respond(
        request,
        "error.html",
        status=problem.status,
        problem=problem.document(REQUEST_ID.get()),
    )
    response.headers.update(problem.headers)
    return response
