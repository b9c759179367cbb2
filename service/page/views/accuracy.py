"""`/accuracy`: accuracy of predictions, by model and hardware."""

from __future__ import annotations

from fastapi import Request, Response

from service.handlers import accuracy as handlers
from service.page.inner import read
from service.page.render import respond


async def show(request: Request) -> Response:
    """Returns medians of the errors, and the newest runs; `graph` and `hardware` filter."""
    query = {
        name: value for name in ("graph", "hardware") if (value := request.query_params.get(name))
    }
    document = await read(request, handlers.get_accuracy, query)
    return await respond(
        request, "accuracy.html", groups=document["items"], found=document, filtered=bool(query)
    )
