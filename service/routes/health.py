"""/healthz, /readyz, /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse

from service.base.problems import Problem
from service.edge.http import caller_of
from service.edge.state import state_of
from service.openapi import document as doc
from service.openapi.document import PURPOSES
from shardwise.errors import BadInput

router = APIRouter(tags=["operation"])


@router.get("/healthz", **doc.healthz)
async def healthz() -> Response:
    """Whether this process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", **doc.readyz)
async def readyz(request: Request) -> Response:
    """Whether questions are accepted and computed; with `for=reading`, whether stored ones are.

    A broker or a worker that is away only delays answers.
    """
    await state_of(request).gate.admit_anyone(caller_of(request))
    purpose = request.query_params.get("for", "writing")
    if purpose not in PURPOSES:
        raise BadInput(f"got {purpose[:40]!r}", field="for", expected=" or ".join(PURPOSES))
    checks = await state_of(request).readiness.checks()
    ready = checks["database"] == "ok"
    if purpose == "writing":
        ready = ready and checks["writes"] == "ok"
    return JSONResponse(
        {"status": "ready" if ready else "not ready", "checks": checks}, 200 if ready else 503
    )


def require_certificate(request: Request) -> None:
    """Raises `Problem` for a client without a certificate if `tls_client_ca` is set."""
    shown = request.scope.get("extensions", {}).get("tls", {}).get("client_cert_name")
    if state_of(request).settings.tls_client_ca and shown is None:
        raise Problem("forbidden", "metrics require a client certificate")


@router.get("/metrics", **doc.metrics)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format.

    Where client certificates are requested (`tls_client_ca`), only a client with one gets them.
    """
    state = state_of(request)
    await state.gate.admit_anyone(caller_of(request))
    require_certificate(request)
    text = await state.pools.probes.run("metrics", generate_latest, state.metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
