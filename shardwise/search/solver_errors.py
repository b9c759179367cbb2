"""Translates the solver's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardwise import _core
from shardwise.errors import Cancelled, SolverError


@contextmanager
def solver_errors() -> Iterator[None]:
    """Raises `Cancelled` if the solver was stopped, and `SolverError` if it met a limit before
    there was any answer."""
    try:
        yield
    except _core.Cancelled:
        raise Cancelled from None
    except (RuntimeError, TimeoutError) as error:
        raise SolverError(str(error)) from None
