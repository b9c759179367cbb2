"""Every address of the page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from service.page.assets import serve_asset
from service.page.route import PageRoute
from service.page.views import ask, graphs, hardware, jobs, points, signing

router = APIRouter(route_class=PageRoute, include_in_schema=False)

router.add_api_route("/", ask.show, methods=["GET", "HEAD"])
router.add_api_route("/ask", ask.take, methods=["POST"])
router.add_api_route("/graphs", graphs.show, methods=["GET", "HEAD"])
router.add_api_route("/graphs", graphs.take, methods=["POST"])
router.add_api_route("/graphs/{graph_id}/delete", graphs.delete, methods=["POST"])
router.add_api_route("/hardware", hardware.show, methods=["GET", "HEAD"])
router.add_api_route("/hardware", hardware.take, methods=["POST"])
router.add_api_route("/hardware/{hardware_id}/delete", hardware.delete, methods=["POST"])
router.add_api_route("/jobs", jobs.show_all, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}", jobs.show, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}/events", jobs.events, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}/document", jobs.document, methods=["GET", "HEAD"])
router.add_api_route("/jobs/{job_id}/cancel", jobs.cancel, methods=["POST"])
router.add_api_route("/jobs/{job_id}/plan", points.take, methods=["POST"])
router.add_api_route("/sign-in", signing.show, methods=["GET", "HEAD"])
router.add_api_route("/sign-in", signing.take, methods=["POST"])
router.add_api_route("/sign-out", signing.leave, methods=["POST"])


@router.api_route("/agents", methods=["GET", "HEAD"])
async def agents(request: Request) -> Response:
    """The agents; none can be enrolled yet."""
    return await jobs.show_agents(request)


@router.api_route("/assets/{name}", methods=["GET", "HEAD"])
async def assets(request: Request, name: str) -> Response:
    """A script, a style sheet or a picture; for everybody."""
    return await run_in_threadpool(serve_asset, request, name)
