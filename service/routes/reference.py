"""/docs: the OpenAPI document as one HTML page, without scripts and without the network.

FastAPI's own page loads a script from the network; this page needs none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, JSONResponse

from service.edge.http import caller_of
from service.edge.state import state_of

router = APIRouter()
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
_STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;"
    "margin:auto;padding:1rem}pre,table{overflow-x:auto;display:block}"
    "td,th{text-align:left;padding:.1rem .8rem .1rem 0;vertical-align:top}"
)


@router.get("/docs", include_in_schema=False)
async def reference(request: Request) -> HTMLResponse:
    """The reference of all calls."""
    await state_of(request).gate.admit_anyone(caller_of(request))
    headers = {"Content-Security-Policy": POLICY}
    return HTMLResponse(reference_page(request.app.openapi()), headers=headers)


@router.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
async def document(request: Request) -> JSONResponse:
    """The OpenAPI document."""
    await state_of(request).gate.admit_anyone(caller_of(request))
    return JSONResponse(request.app.openapi())


def reference_page(document: dict[str, Any]) -> str:
    """Returns an OpenAPI 3.1 document as HTML; all text of it is escaped."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    calls = "".join(
        part
        for path, methods in document["paths"].items()
        for method, call in methods.items()
        for part in _call(path, method, call)
    )
    schemas = "".join(
        f'<details id="{escape(name)}"><summary>{escape(name)}</summary>{_code(schema)}</details>'
        for name, schema in document.get("components", {}).get("schemas", {}).items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><main><h1>{title}</h1>"
        '<p>The same for programs: <a href="/openapi.json">openapi.json</a></p>'
        f"<h2>Calls</h2>{calls}<h2>Schemas</h2>{schemas}</main></body></html>"
    )


def _call(path: str, method: str, call: dict[str, Any]) -> Iterator[str]:
    yield f"<h3><code>{escape(method.upper())} {escape(path)}</code></h3>"
    yield f"<p>{escape(call.get('description') or call.get('summary', ''))}</p>"
    if parameters := call.get("parameters"):
        yield "<table><tr><th>parameter</th><th>in</th><th></th></tr>"
        for one in parameters:
            text = one.get("description", "") + (" (required)" if one.get("required") else "")
            cells = (one.get("name", one.get("$ref", "")), one.get("in", ""), text)
            yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        yield "</table>"
    if body := call.get("requestBody"):
        yield f"<details><summary>body</summary>{_code(body)}</details>"
    yield "<table><tr><th>answer</th><th></th></tr>"
    for status, response in call.get("responses", {}).items():
        text = response.get("description", response.get("$ref", ""))
        yield f"<tr><td>{escape(status)}</td><td>{escape(text)}</td></tr>"
    yield "</table>"


def _code(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=1, ensure_ascii=False))}</pre>"
