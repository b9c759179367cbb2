"""The states of a launch and of its assignments, as pure functions (ADR 0015).

    launch       queued → starting → running → done | failed | stopped | lost
    assignment   waiting → assigned → running → done | failed | stopped | lost

A launch is a gang: `starting` once every assignment of its placement is claimed, `running` once
every one runs, `done` once every one is done. The first assignment that ends otherwise decides how
the launch ends; the others are asked to stop, and the launch has ended when the last of them has.
States only go forward, with one exception: a launch that is still `queued` loses its placement but
does not end when an agent is lost or does not claim in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from shardwise.documents.launches import AssignmentState, LaunchEnded, LaunchState

LAUNCH_STATES = get_args(LaunchState)
LAUNCH_ENDED = get_args(LaunchEnded)
LAUNCH_ACTIVE = ("queued", "starting", "running")
ASSIGNMENT_STATES = get_args(AssignmentState)
ASSIGNMENT_ACTIVE = ("waiting", "assigned", "running")
ASSIGNMENT_HELD = ("assigned", "running")
"""Those that an agent has a lease on."""

ASSIGNMENT_ENDED = ("done", "failed", "stopped", "lost")
REPORTED = ("running", "done", "failed", "stopped", "lost")
"""States that an agent may report for a claimed assignment; `lost`: the agent was killed."""

_RANK = {"waiting": 0, "assigned": 1, "running": 2, "done": 3, "failed": 3, "stopped": 3, "lost": 3}


def may_become(before: str, after: str) -> bool:
    """Returns whether a state may follow another: only forward, never from an end."""
    return _RANK[after] > _RANK[before]


def launch_state(before: str, ending: str | None, assignments: Sequence[str]) -> str:
    """Returns the launch's state, from its last one, how it is to end, and its assignments' states.

    The assignments are those of its placement; how many are in a state does not matter.
    """
    if before in LAUNCH_ENDED:
        return before
    active = any(state in ASSIGNMENT_ACTIVE for state in assignments)
    if ending is not None:
        return before if active else ending
    if not assignments:
        return before
    if all(state == "done" for state in assignments):
        return "done"
    if all(state in ("running", "done") for state in assignments):
        return "running"
    claimed = all(state in ("assigned", "running", "done") for state in assignments)
    return "starting" if claimed and before == "queued" else before
