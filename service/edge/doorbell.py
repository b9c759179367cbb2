"""The doorbell: tells workers through Celery's broker that a job's row exists.

The message is the task's name and the job's id, nothing else. A lost ring costs time, never a job:
the sweeper (worker/sweeper.py) rings again for rows that no worker holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from service.base.settings import Settings
from service.base.traces import inject

SOLVE = "shardwise.solve"
VISIBILITY_S = 12 * 3600
"""Longer than any solve: Redis must not hand out a second copy of what is being worked on."""

PROBE_KEPT_S = 60

log = logging.getLogger(__name__)


def broker_url(redis_url: str) -> str:
    """Returns Celery's URL; the path of a unix socket is written `redis+socket://`."""
    scheme, _, rest = redis_url.partition("://")
    if scheme == "unix":
        return f"redis+socket://{rest}"
    return "redis" + ("s" if scheme in ("rediss", "valkeys") else "") + f"://{rest}"


def configure(app: Celery, settings: Settings) -> Celery:
    """Applies the configuration that services and workers share. Returns the app."""
    app.conf.update(
        broker_url=broker_url(settings.redis_url),
        broker_transport_options={
            "visibility_timeout": VISIBILITY_S,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "retry_on_timeout": True,
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_default_queue=settings.queue,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        enable_utc=True,
    )
    return app


def _refusals(app: Celery) -> tuple[type[Exception], ...]:
    """Returns the exceptions raised when the broker refuses a message."""
    with app.connection_for_write() as connection:
        refusals: tuple[type[Exception], ...] = connection.channel_errors
        return (*refusals, *connection.connection_errors)


class Doorbell:
    """Sends messages to workers through the broker."""

    def __init__(self, settings: Settings) -> None:
        self._app = configure(Celery("shardwise-doorbell", set_as_current=False), settings)

    def ring(self, job_ids: Iterable[str]) -> bool:
        """Sends one message for each job. Returns False, and logs why, if the broker fails."""
        try:
            for job_id in job_ids:
                self._app.send_task(SOLVE, args=[job_id], headers=inject(), retry=False)
        except (OperationalError, OSError, *_refusals(self._app)) as error:
            log.warning("the broker takes no message, the sweeper will ring: %s", error)
            return False
        return True

    def takes_writes(self) -> str:
        """Tries a write that expires.

        Returns `ok`, `refuses writes` (full, or a replica) or `unreachable`.
        """
        with self._app.connection_for_write() as connection:
            try:
                connection.ensure_connection(max_retries=1, timeout=3)
                client: Any = connection.default_channel.client
                client.set(f"{self._app.conf.task_default_queue}:probe", "1", ex=PROBE_KEPT_S)
            except connection.channel_errors as error:
                log.warning("the broker refuses writes: %s", error)
                return "refuses writes"
            except (OperationalError, OSError, *connection.connection_errors) as error:
                log.debug("the broker cannot be reached: %s", error)
                return "unreachable"
        return "ok"

    def waiting(self) -> int | None:
        """Returns the number of messages not yet taken; None if the broker is unreachable."""
        with self._app.connection_for_read() as connection:
            try:
                connection.ensure_connection(max_retries=1, timeout=3)
                declared: Any = connection.default_channel.queue_declare(
                    self._app.conf.task_default_queue, passive=True
                )
                return int(declared.message_count)
            except connection.channel_errors:
                return 0  # Redis has no list that is empty
            except (OperationalError, OSError, *connection.connection_errors) as error:
                log.debug("the broker cannot be reached: %s", error)
                return None

    def close(self) -> None:
        """Closes connections."""
        self._app.close()
