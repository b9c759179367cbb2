"""/healthz, /readyz, /metrics."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from service import openapi as doc
from service.schema import require_schema
from service.state import State, state_of
from service.store.database import StoreUnavailable
from service.store.records import living_workers
from shardwise.errors import BadInput

log = logging.getLogger(__name__)
router = APIRouter(tags=["operation"])


@router.get("/healthz", **doc.healthz)
async def healthz() -> Response:
    """Whether this process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", **doc.readyz)
async def readyz(request: Request) -> Response:
    """Whether questions can be taken and are being computed."""
    checks = await run_in_threadpool(_checks, state_of(request))
    ready = checks["database"] == "ok"
    return JSONResponse(
        {"status": "ready" if ready else "not ready", "checks": checks}, 200 if ready else 503
    )


def _checks(state: State) -> dict[str, Any]:
    """Accepting needs the database alone; a broker or worker that is away delays answers."""
    try:
        require_schema(state.database)
        with state.database.read() as session:
            workers = len(living_workers(session, state.settings.lease_s))
    except StoreUnavailable as error:
        # Its reason names hosts and users: that is for the log, not for whoever asks.
        log.warning("not ready: %s", error)
        return {"database": "unavailable", "broker": "not asked", "workers": 0}
    except BadInput as error:
        return {"database": str(error), "broker": "not asked", "workers": 0}
    broker = "ok" if state.doorbell.waiting() is not None else "unreachable"
    return {"database": "ok", "broker": broker, "workers": workers}


@router.get("/metrics", **doc.metrics)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text form."""
    registry = state_of(request).metrics.registry
    text = await run_in_threadpool(generate_latest, registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
