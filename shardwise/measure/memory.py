"""Memory that a training step frees stays with the process: the next step wants the same again.

glibc gives large blocks back to the system and gets them anew, page by page, at every step. A page
that is touched for the first time cost 7 to 14 µs on a virtual machine whose host takes back what
is free: a copy of 16 MiB then took 57 ms instead of 3.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MOST = 2**31 - 1
_NEVER_MAPPED = 2**30
_PAD = 2**26


def keep_freed_memory() -> bool:
    """Keep what is freed, in blocks up to 1 GiB, until the process ends.

    Only glibc's allocator is told (`mallopt`); False where there is another.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = (mallopt(_M_MMAP_THRESHOLD, _NEVER_MAPPED), mallopt(_M_TRIM_THRESHOLD, _MOST))
    mallopt(_M_TOP_PAD, _PAD)
    return all(kept)
