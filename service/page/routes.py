"""Every address of the page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.edge.state import state_of
from service.page.assets import serve_asset
from service.page.inner import page_caller
from service.page.manual import ROOT, serve_docs
from service.page.render import in_thread, redirect
from service.page.route import PageRoute
from service.page.views import (
    accuracy,
    agents,
    ask,
    audit,
    graphs,
    hardware,
    jobs,
    keys,
    launch_form,
    launches,
    login,
    points,
    side_by_side,
    signing,
    tenants,
    to_compare,
    usage,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)

router.add_api_route("/", ask.show, methods=["GET", "HEAD"])
router.add_api_route("/ask", ask.take, methods=["POST"])
router.add_api_route("/graphs", graphs.show, methods=["GET", "HEAD"])
router.add_api_route("/graphs", graphs.take, methods=["POST"])
router.add_api_route("/graphs/{graph_id}/delete", graphs.delete, methods=["POST"])
router.add_api_route("/hardware", hardware.show, methods=["GET", "HEAD"])
router.add_api_route("/hardware", hardware.take, methods=["POST"])
router.add_api_route("/hardware/{hardware_id}", hardware.show_one, methods=["GET", "HEAD"])
router.add_api_route("/hardware/{hardware_id}/document", hardware.document, methods=["GET", "HEAD"])
router.add_api_route("/hardware/{hardware_id}/refit", hardware.refit, methods=["POST"])
router.add_api_route("/hardware/{hardware_id}/delete", hardware.delete, methods=["POST"])
router.add_api_route("/jobs", jobs.show_all, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}", jobs.show, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}/events", jobs.events, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}/document", jobs.document, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}/files/{name}", jobs.file, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}/cancel", jobs.cancel, methods=["POST"])
router.add_api_route("/jobs/{job_id}/plan", points.take, methods=["POST"])
router.add_api_route("/jobs/{job_id}/comparison", to_compare.take, methods=["POST"])
router.add_api_route("/compare", side_by_side.show, methods=["GET", "HEAD"])
router.add_api_route("/agents", agents.show_all, methods=["GET", "HEAD"])
router.add_api_route("/agents/tokens", agents.make_token, methods=["POST"])
router.add_api_route("/agents/{agent_id}", agents.show, methods=["GET", "HEAD"])
router.add_api_route("/agents/{agent_id}/drain", agents.drain, methods=["POST"])
router.add_api_route("/agents/{agent_id}/undrain", agents.undrain, methods=["POST"])
router.add_api_route("/agents/{agent_id}/remove", agents.remove, methods=["POST"])
router.add_api_route("/launches", launches.show_all, methods=["GET", "HEAD"])
router.add_api_route("/launches", launch_form.take, methods=["POST"])
router.add_api_route("/launches/new", launch_form.show, methods=["GET", "HEAD"])
router.add_api_route("/launches/{launch_id}", launches.show, methods=["GET", "HEAD"])
router.add_api_route("/launches/{launch_id}/events", launches.events, methods=["GET", "HEAD"])
router.add_api_route("/launches/{launch_id}/lines", launches.lines, methods=["GET", "HEAD"])
router.add_api_route("/launches/{launch_id}/stop", launches.stop, methods=["POST"])
router.add_api_route(
    "/launches/{launch_id}/runs/{run_id}/accept", launches.accept, methods=["POST"]
)
router.add_api_route(
    "/launches/{launch_id}/runs/{run_id}/reject", launches.reject, methods=["POST"]
)
router.add_api_route("/accuracy", accuracy.show, methods=["GET", "HEAD"])
router.add_api_route("/usage", usage.show, methods=["GET", "HEAD"])
router.add_api_route("/keys", keys.show_all, methods=["GET", "HEAD"])
router.add_api_route("/keys", keys.make, methods=["POST"])
router.add_api_route("/keys/{key_id}/rotate", keys.rotate, methods=["POST"])
router.add_api_route("/keys/{key_id}/revoke", keys.revoke, methods=["POST"])
router.add_api_route("/audit", audit.show, methods=["GET", "HEAD"])
router.add_api_route("/admin", tenants.show_all, methods=["GET", "HEAD"])
router.add_api_route("/admin", tenants.make, methods=["POST"])
router.add_api_route("/admin/{tenant}", tenants.show, methods=["GET", "HEAD"])
router.add_api_route("/admin/{tenant}/limits", tenants.limit, methods=["POST"])
router.add_api_route("/admin/{tenant}/export", tenants.export, methods=["GET", "HEAD"])
router.add_api_route("/admin/{tenant}/delete", tenants.delete, methods=["POST"])
router.add_api_route("/admin/{tenant}/keys", tenants.make_tenant_key, methods=["POST"])
router.add_api_route("/admin/{tenant}/keys/{key_id}/rotate", keys.rotate, methods=["POST"])
router.add_api_route("/admin/{tenant}/keys/{key_id}/revoke", keys.revoke, methods=["POST"])
router.add_api_route("/sign-in", signing.show, methods=["GET", "HEAD"])
router.add_api_route("/sign-in", signing.take, methods=["POST"])
router.add_api_route("/sign-in/start", login.start, methods=["GET"])
router.add_api_route("/sign-in/callback", login.finish, methods=["GET"])
router.add_api_route("/tenant", login.show_tenants, methods=["GET", "HEAD"])
router.add_api_route("/tenant", login.take_tenant, methods=["POST"])
router.add_api_route("/sign-out", signing.leave, methods=["POST"])


@router.api_route("/assets/{name}", methods=["GET", "HEAD"])
async def assets(request: Request, name: str) -> Response:
    """Returns a script, a style sheet or a picture, to anyone."""
    await state_of(request).gate.admit_anyone(page_caller(request))
    return await in_thread(request, serve_asset, request, name)


@router.api_route("/manual/{name:path}", methods=["GET", "HEAD"])
async def manual(request: Request, name: str) -> Response:
    """Returns a file of the documentation, to anyone."""
    await state_of(request).gate.admit_anyone(page_caller(request))
    return await in_thread(request, serve_docs, request, name)


@router.api_route("/manual", methods=["GET", "HEAD"])
async def manual_index(request: Request) -> Response:
    """Redirects to the documentation's first page."""
    await state_of(request).gate.admit_anyone(page_caller(request))
    return redirect(ROOT)
