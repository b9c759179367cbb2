"""The collector of cycles: when Python looks for objects that only refer to each other."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Lets the collector of cycles rest, for work that makes many objects and hardly any cycle.

    The objects of an answer live until it is there: looking through all of them time and again is
    a tenth to a fifth of a plan's seconds, and frees next to nothing. Afterwards they count as old.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
