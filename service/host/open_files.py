"""The limit on open files of this process; each connection is one."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)
RESERVED = 256
"""Open files besides connections: database, broker, ends of event streams, logs."""


def raise_open_files(connections: int) -> int:
    """Raises the soft limit of open files towards the hard one as far as `connections` need.

    Returns how many connections fit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft
    fit = min(connections, max(most - RESERVED, most // 2))
    if fit < connections:
        log.warning(
            "fewer connections than max_connections fit into the limit of open files",
            extra={"connections": fit, "open_files": most},
        )
    return fit
