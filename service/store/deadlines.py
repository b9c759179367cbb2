"""Deadlines of PostgreSQL: the server's own, and one of ours for a server that does not answer.

A server that is stopped, or behind a network that swallows packets, runs no timeout of its own, and
its kernel may keep acknowledging. So every wait for it (statements, BEGIN, COMMIT, ROLLBACK, the
pool's check whether a connection lives) also ends by this process's clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from sqlalchemy import Engine, event

CONNECT_S = 3.0
"""Longest wait for a connection, and for the check whether an idle one still lives."""

GRACE_S = 2.0
"""Extra seconds of our deadline over the server's, whose error says more."""

REST_S = 1.0
"""Pause after a deadline was hit; then one caller checks whether the server answers."""


@dataclass(frozen=True)
class Deadline:
    """The longest statement in seconds; waits for a lock get half of it."""

    statement_s: float

    @property
    def wait_s(self) -> float:
        """Seconds without an answer after which this process hangs up."""
        return self.statement_s + GRACE_S

    def server_settings(self) -> dict[str, str]:
        """Returns the settings of a connection's session."""
        return {
            "statement_timeout": f"{round(self.statement_s * 1000)}ms",
            "lock_timeout": f"{round(self.statement_s * 500)}ms",
            "idle_in_transaction_session_timeout": f"{round(self.statement_s * 3000)}ms",
        }


def connect_arguments(deadline: Deadline | None) -> dict[str, Any]:
    """Returns libpq's arguments, which notice a lost host whether or not anything is sent."""
    arguments: dict[str, Any] = {
        "connect_timeout": 5,
        "keepalives": 1,
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    if deadline is not None:
        arguments["connect_timeout"] = round(CONNECT_S)
        arguments["tcp_user_timeout"] = round(deadline.wait_s * 1000)
    return arguments


class Breaker:
    """Open after a deadline was hit: calls fail at once, so that they do not fill all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._rests_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the database did not answer when it was last asked."""
        return self._open

    def trip(self) -> None:
        """Opens the breaker after a deadline was hit."""
        with self._lock:
            self._open = True
            self._rests_until = monotonic() + REST_S

    def close(self) -> None:
        """Closes the breaker: the database answers."""
        self._open = False

    def may_try(self, longest_s: float) -> bool:
        """Returns whether the caller is the one to check now, for at most `longest_s`."""
        with self._lock:
            if monotonic() < self._rests_until:
                return False
            self._rests_until = monotonic() + longest_s
            return True


def keep_deadline(engine: Engine, deadline: Deadline, trip: Callable[[], None]) -> None:
    """Makes the engine's connections hang up after the deadline and then call `trip`."""
    import psycopg

    class Bounded(psycopg.Connection[Any]):
        """A connection whose waits are limited to `limit_s`."""

        limit_s = deadline.wait_s

        def wait(self, gen: Any, *args: Any, **keywords: Any) -> Any:
            return super().wait(self._bounded(gen), *args, **keywords)

        def _bounded(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            """Runs `gen` with the deadline; the driver resumes it several times a second."""
            until = monotonic() + self.limit_s
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if not ready and monotonic() > until:
                        self._hang_up()
                    wanted = gen.send(ready)
            except StopIteration as end:
                return end.value

        def _hang_up(self) -> None:
            limit_s = self.limit_s
            self.pgconn.finish()
            trip()
            raise psycopg.OperationalError(f"no answer within {limit_s:g} s")

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Any, keywords: Any) -> Any:
        try:
            return Bounded.connect(*arguments, **keywords)
        except psycopg.errors.ConnectionTimeout:
            trip()
            raise

    @event.listens_for(engine, "connect", insert=True)
    def connected(connection: Any, record: Any) -> None:
        names = deadline.server_settings()
        called = ", ".join("set_config(%s, %s, false)" for _ in names)
        values = [text for pair in names.items() for text in pair]
        connection.execute(f"SELECT {called}", values)
        connection.commit()

    @event.listens_for(engine, "checkin")
    def idle(connection: Any, record: Any) -> None:
        if connection is not None:
            connection.limit_s = min(CONNECT_S, deadline.wait_s)

    @event.listens_for(engine, "checkout")
    def used(connection: Any, record: Any, proxy: Any) -> None:
        connection.limit_s = deadline.wait_s
