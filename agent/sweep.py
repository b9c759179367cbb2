"""What an agent does first: end what a killed agent has left, and say that it is lost."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path

from agent.ledger import read_records, remove_record
from agent.processes import (
    Process,
    descendants,
    environment_of,
    is_alive,
    marked,
    process_table,
    send,
)
from agent.scope import leftover_scopes
from agent.spool import Spool

log = logging.getLogger(__name__)
AGENT_MARKER = "SHARDWISE_AGENT_ID"
ASSIGNMENT_MARKER = "SHARDWISE_ASSIGNMENT"


def scope_prefix(agent_id: str) -> str:
    """Returns the prefix of the cgroup names of an agent's launches."""
    return f"shardwise-{agent_id}-"


def sweep(
    folder: Path, spool: Spool, agent_id: str, scope_parent: Path | None, wait_s: float
) -> set[Process]:
    """Ends the orphans and reports their assignments `lost`. Returns those that do not die.

    An orphan carries the agent's marker in its environment, descends from a recorded keeper, or is
    in one of the agent's cgroups. A recorded keeper counts only when number, start time and
    marker agree: a reused number is another process.
    """
    records = read_records(folder)
    scopes = leftover_scopes(scope_parent, scope_prefix(agent_id))
    keepers = {record.keeper for record in records if record.keeper is not None}

    def orphans() -> set[Process]:
        table = process_table()
        processes = marked(AGENT_MARKER, agent_id)
        for keeper in keepers:
            if _is_ours(keeper, agent_id):
                processes |= {keeper} | descendants(keeper, table)
        for scope in scopes:
            processes |= scope.processes()
        return {process for process in processes if is_alive(process)}

    until = time.monotonic() + wait_s
    while (left := orphans()) and time.monotonic() < until:
        log.warning("orphans are ended", extra={"processes": len(left)})
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.05)
    for scope in scopes:
        scope.kill()
        scope.remove()
    ended = {assignment for assignment, _, _ in spool.ended()}
    for record in records:
        if record.assignment not in ended:
            reason = "the agent was killed; what it had started was ended at its restart"
            spool.put("state", record.assignment, record.token, state="lost", reason=reason)
        remove_record(folder, record.assignment)
    return left


def _is_ours(keeper: Process, agent_id: str) -> bool:
    if not is_alive(keeper):
        return False
    return environment_of(keeper.pid).get(AGENT_MARKER.encode()) == agent_id.encode()
