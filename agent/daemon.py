"""The agent at work: one thread sends heartbeats, one asks for work,
one ships reports, one per job.

The main thread watches the lease: when no heartbeat has succeeded for `lease_s`, every job is
stopped, whatever hangs elsewhere.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import uuid
from collections import deque
from typing import Any

from agent.allow import Refused, check_size, program_of
from agent.assignment import Assignment, read_assignment
from agent.clock import now_s
from agent.identity import Identity
from agent.inventory import hash_of, inventory
from agent.job import Host, Job
from agent.processes import Process, is_alive
from agent.service import Refusal, Service, Unreachable
from agent.shipping import Shipper
from agent.slots import Slots
from agent.spool import ENDED
from agent.sweep import sweep
from shardwise.errors import BadInput

log = logging.getLogger(__name__)
LOOK_S = 0.2
WAIT_FOR_WORK_S = 25.0
INVENTORY_S = 30.0
HOUSEKEEPING_S = 600.0
LAST_SHIPPING_S = 10.0
ACCEPTED_KEPT = 1000
"""Assignments, running or ended, that are recognised when they are handed out again."""
REVOKED_AFTER = 3
"""Heartbeats in a row whose key is refused before the agent believes it."""


class Agent:
    """An enrolled agent. `run` works until the agent is asked to stop."""

    def __init__(self, identity: Identity, host: Host) -> None:
        self.identity = identity
        self.host = host
        self.stopping = threading.Event()
        self.stop_requested = False
        """Set by a signal handler, in which an Event's own lock may be held already."""
        self.exit_status = 0
        self._removed = False
        self._boot = str(uuid.uuid4())
        self._lock = threading.Lock()
        self._jobs: dict[str, tuple[Job, list[int]]] = {}
        self._accepted: deque[str] = deque(maxlen=ACCEPTED_KEPT)
        self._undead: set[Process] = set()
        self._lease_s = identity.lease_s
        self._heartbeat_s = identity.heartbeat_s
        self._renewed_at = now_s()
        self._lease_held = False
        self._inventory = inventory(host.config, set())
        self._inventory_at = now_s()
        self._inventory_known = ""
        self._slots = Slots(
            self._inventory["slots"], [device["uuid"] for device in self._inventory["devices"]]
        )
        self._shipper = Shipper(self._connect, host.spool)

    def _connect(self) -> Service:
        return Service(self.identity.server, self.identity.key, self.identity.id)

    def run(self) -> int:
        """Sweeps, works, then stops in order. Returns the exit status."""
        host = self.host
        wait_s = host.config.kill_wait_s
        self._undead = sweep(host.data.jobs, host.spool, host.agent_id, host.scope_parent, wait_s)
        host.data.remove_old_runs(host.config.keep_runs_s, set())
        threads = [
            threading.Thread(target=self._beat_on, name="heartbeat", daemon=True),
            threading.Thread(target=self._take_work, name="assignments", daemon=True),
            self._shipper,
        ]
        for thread in threads:
            thread.start()
        self._watch()
        self._wind_up()
        return self.exit_status

    def stop(self, status: int = 0) -> None:
        """Stops working."""
        self.exit_status = max(self.exit_status, status)
        self.stopping.set()

    def _watch(self) -> None:
        cleaned = now_s()
        while not self.stopping.wait(LOOK_S):
            if self.stop_requested:
                self.stop()
            self._look_after_jobs()
            if now_s() - cleaned > HOUSEKEEPING_S:
                cleaned = now_s()
                self.host.data.remove_old_runs(self.host.config.keep_runs_s, set(self._jobs))

    def _look_after_jobs(self) -> None:
        """Stops jobs without a lease and removes those that have ended."""
        silent_s = now_s() - self._renewed_at
        if silent_s > self._lease_s:
            if self._lease_held:
                log.error("the lease has expired", extra={"silent_s": round(silent_s, 1)})
            self._lease_held = False
            reason = f"the lease expired: no heartbeat was answered for {self._lease_s:g} s"
            self._stop_jobs("stopped", reason)
        self._undead = {process for process in self._undead if is_alive(process)}
        for job, places in list(self._jobs.values()):
            if job.has_ended and not job.members.left():
                with self._lock:
                    self._slots.give_back(places)
                    del self._jobs[job.assignment.id]

    def _stop_jobs(self, state: str, reason: str) -> None:
        for job, _ in list(self._jobs.values()):
            if not job.has_ended:
                job.stop(state, reason)

    def _wind_up(self) -> None:
        """Stops the jobs and ships what is spooled, as far as time allows."""
        config = self.host.config
        until = now_s() + config.stop_grace_s + 2 * config.kill_wait_s + 5.0
        while self._jobs and now_s() < until:
            self._stop_jobs("stopped", "the agent was stopped")
            self._look_after_jobs()
            threading.Event().wait(0.05)
        # The service refuses the reports of an agent that was removed.
        self._shipper.finish(0.0 if self._removed else LAST_SHIPPING_S)

    # Heartbeats

    def _beat_on(self) -> None:
        refused = 0
        with self._connect() as service:
            while True:
                started = now_s()
                try:
                    self._beat(service, started)
                    refused = 0
                except Unreachable as error:
                    log.warning("no heartbeat: %s", error)
                except Refusal as error:
                    log.error("heartbeat refused: %s", error)
                    if error.of_the_agent:
                        refused += 1
                    if refused >= REVOKED_AFTER:
                        self._revoked()
                        return
                self.host.spool.probe()
                pause_s = self._heartbeat_s if self._lease_held else min(1.0, self._heartbeat_s)
                threading.Event().wait(max(0.0, started + pause_s - now_s()))

    def _beat(self, service: Service, started: float) -> None:
        self._look_at_host()
        document = self._heartbeat()
        timeout_s = max(1.0, min(self._heartbeat_s * 2, self._lease_s / 3))
        reply = service.heartbeat(document, timeout_s)
        # Counted from when it was sent: the service cannot have renewed it earlier than that.
        self._renewed_at = started
        self._lease_held = True
        lease_s = reply.get("lease_s")
        if isinstance(lease_s, int | float) and lease_s > 0:
            self._lease_s = float(lease_s)
        self._inventory_known = "" if reply.get("inventory_wanted") else document["inventory_hash"]
        for assignment in reply.get("stop") or []:
            entry = self._jobs.get(assignment)
            if entry is not None and not entry[0].has_ended:
                entry[0].stop("stopped", "the service has ended it")

    def _heartbeat(self) -> dict[str, Any]:
        jobs: list[dict[str, Any]] = []
        for job, _ in list(self._jobs.values()):
            if job.state not in ENDED:
                entry = {
                    "assignment": job.assignment.id,
                    "token": job.assignment.token,
                    "state": job.state,
                }
                jobs.append(entry if job.pid is None else {**entry, "pid": job.pid})
        # An end that is not acknowledged yet keeps its lease, or it would be recorded as lost for
        # another reason than the report's.
        for assignment, token, state in self.host.spool.ended():
            jobs.append({"assignment": assignment, "token": token, "state": state})
        reason = self._trouble()
        document: dict[str, Any] = {
            "schema": "shardwise.heartbeat/1",
            "boot_id": self._boot,
            "inventory_hash": hash_of(self._inventory),
            "jobs": jobs,
            "draining": bool(reason),
        }
        if reason:
            document["reason"] = reason
        if document["inventory_hash"] != self._inventory_known:
            document["inventory"] = self._inventory
        return document

    def _look_at_host(self) -> None:
        if now_s() - self._inventory_at > INVENTORY_S:
            self._inventory_at = now_s()
            own = {pid for job, _ in list(self._jobs.values()) for pid in job.members.pids()}
            self._inventory = inventory(self.host.config, own)

    def _trouble(self) -> str:
        """Returns why no work is accepted, or an empty string."""
        undead = {process.pid for process in self._undead}
        for job, _ in list(self._jobs.values()):
            if job.has_ended:
                undead |= job.members.pids()
        reasons = [self.host.spool.trouble]
        if undead:
            reasons.append(f"processes do not die: {', '.join(map(str, sorted(undead)))}")
        if self.stopping.is_set():
            reasons.append("the agent is stopping")
        return "; ".join(filter(None, reasons))

    def _revoked(self) -> None:
        log.error(
            "the service does not know this agent any more: its jobs are stopped; to enrol again, "
            "remove identity.json from the data directory"
        )
        self._removed = True
        self._stop_jobs("stopped", "the agent was removed from the service")
        self.stop(2)

    # Work

    def _take_work(self) -> None:
        pause_s = 0.0
        with self._connect() as service:
            while not self.stopping.wait(pause_s):
                pause_s = LOOK_S
                if not self._lease_held or self._trouble() or not self._slots.free:
                    continue
                try:
                    document = service.next_assignment(WAIT_FOR_WORK_S)
                except (Unreachable, Refusal) as error:
                    log.warning("no work can be asked for: %s", error)
                    pause_s = max(1.0, getattr(error, "retry_after_s", 0.0)) * random.uniform(1, 2)
                    continue
                if document is not None:
                    self._accept(document)

    def _accept(self, document: Any) -> None:
        try:
            assignment = read_assignment(document)
        except BadInput as error:
            self._refuse(document, f"the assignment is refused: {error}")
            return
        if assignment.id in self._accepted:
            return  # the service has not heard of it yet
        self._accepted.append(assignment.id)
        try:
            self._launch(assignment)
        except (Refused, BadInput) as error:
            self._refuse(document, f"the assignment is refused: {error}")

    def _launch(self, assignment: Assignment) -> None:
        check_size(assignment, self._slots.free)
        if trouble := self._trouble():
            raise Refused(trouble)
        program = program_of(assignment, self.host.config, os.environ)
        with self._lock:
            places = self._slots.take(assignment.ranks_per_node)
            job = Job(assignment, program, self._slots.environment(places), self.host)
            self._jobs[assignment.id] = (job, places)
        log.info(
            "starting",
            extra={
                "assignment": assignment.id,
                "launch": assignment.launch,
                "entry_point": assignment.entry_point,
                "ranks": assignment.ranks_per_node,
            },
        )
        job.start()

    def _refuse(self, document: Any, reason: str) -> None:
        log.warning(reason)
        assignment = document.get("id") if isinstance(document, dict) else None
        token = document.get("token") if isinstance(document, dict) else None
        if isinstance(assignment, str) and isinstance(token, str):
            self.host.spool.put("state", assignment, token, state="failed", reason=reason)


def run_agent(identity: Identity, host: Host) -> int:
    """Runs the agent until SIGTERM or SIGINT. Returns 0, or 2 if the service has removed it."""
    agent = Agent(identity, host)

    def request_stop(number: int, _: object) -> None:
        agent.stop_requested = True

    def broken(arguments: threading.ExceptHookArgs) -> None:
        name = arguments.thread.name if arguments.thread else "a thread"
        log.critical(
            "%s has a defect; the agent stops",
            name,
            exc_info=(
                arguments.exc_type,
                arguments.exc_value or arguments.exc_type(),
                arguments.exc_traceback,
            ),
        )
        agent.stop(1)

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    threading.excepthook = broken
    return agent.run()
