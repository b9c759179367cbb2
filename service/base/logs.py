"""The service's and the worker's logs: with the request and the job, without secrets."""

from __future__ import annotations

from contextvars import ContextVar

from service.base.redact import redacted
from shardwise import logs

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The request that is being served, or that asked for the job."""

JOB_ID: ContextVar[str] = ContextVar("job_id", default="")

# SQLAlchemy would write every row that it reads at debug level: hashes, leases, graphs.
_QUIET = ("alembic", "amqp", "celery.app.trace", "celery.worker.strategy", "kombu", "sqlalchemy")


def context() -> dict[str, str]:
    """Returns the ids of the current request and job, without empty ones."""
    ids = {"request_id": REQUEST_ID.get(), "job_id": JOB_ID.get()}
    return {name: value for name, value in ids.items() if value}


def set_up_logs(level: str, form: str) -> None:
    """Sends every logger's records to standard error in the given form."""
    logs.set_up_logs(level, form, quiet=_QUIET, context=context, mask=redacted)
