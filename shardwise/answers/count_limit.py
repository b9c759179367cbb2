"""A time limit of one count of a curve."""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from shardwise.cost.options import Progress
from shardwise.errors import Cancelled


class TooLong(Exception):
    """A count exceeded its time limit; the text says the limit."""


class CountLimit:
    """Progress that ends a search after `limit_s` seconds.

        with CountLimit(progress, 60.0) as limited:
            search(limited)

    Raises `TooLong` at the end of the block if it has ended the search, even if the search then
    returned what it had: that is not the answer.
    """

    def __init__(self, progress: Progress, limit_s: float) -> None:
        self._progress = progress
        self._limit_s = limit_s
        self._until = monotonic() + limit_s
        self._over = False

    def __call__(self, stage: str, fraction: float) -> bool:
        if not self._progress(stage, fraction):
            return False
        self._over = self._over or monotonic() > self._until
        return not self._over

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._over and (error is None or isinstance(error, Cancelled)):
            raise TooLong(f"more than {self._limit_s:g} s were needed") from None
