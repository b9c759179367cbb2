"""One assignment on this host: started, watched, stopped, ended, reported.

A job is a thread, because the keeper dies with the thread that started it.
What it reports goes to the spool: it never waits for the service.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from agent.allow import Program
from agent.assignment import Assignment
from agent.clock import now_s
from agent.config import Config
from agent.datadir import DataDir, write_durably
from agent.ledger import Record, host_boot, remove_record, write_record
from agent.members import Members
from agent.processes import process_of, send
from agent.ranklogs import RankLogs
from agent.results import Results
from agent.scope import make_scope
from agent.spool import Spool
from agent.sweep import AGENT_MARKER, ASSIGNMENT_MARKER, scope_prefix
from agent.torchrun import KEEPER, failed_rank, network_environment, own_address, torchrun_command
from shardwise.child_process import piped
from shardwise.measure.labels import KIND_VARIABLE, SLOWED_VARIABLE

log = logging.getLogger(__name__)
LOOK_S = 0.2
MEASURE_S = 1.0
READS_AT_END = 256
KEEPER_EXTRA_S = 2.0
"""The keeper kills after the grace period; the agent does so itself this much later."""

LAUNCHER = "torchrun"
"""The stream of torchrun's own lines; they are reported with the first rank of the host."""


@dataclass(frozen=True)
class Host:
    """What the jobs of one agent share."""

    agent_id: str
    config: Config
    data: DataDir
    spool: Spool
    scope_parent: Path | None


@dataclass(frozen=True)
class End:
    """How an assignment ended."""

    state: str
    reason: str = ""
    exit_code: int | None = None


class Job(threading.Thread):
    """An accepted assignment. `state` is one of the service's states of an assignment."""

    def __init__(
        self, assignment: Assignment, program: Program, devices: dict[str, str], host: Host
    ) -> None:
        super().__init__(name=f"job {assignment.id}", daemon=True)
        self.assignment = assignment
        self.state = "assigned"
        self.pid: int | None = None
        self._program = program
        self._devices = devices
        self._host = host
        self._scope = make_scope(
            host.scope_parent,
            scope_prefix(host.agent_id) + assignment.id,
            program.memory_limit_bytes,
        )
        self.members = Members(assignment.id, self._scope)
        self._logs = RankLogs(host.config.logs, self._report_log)
        self._selector = selectors.DefaultSelector()
        self._wish: End | None = None
        self._at_once = False
        self._terminated_at: float | None = None
        self._peak_bytes = 0

    @property
    def has_ended(self) -> bool:
        """Whether it ran and runs no more; False before its thread has been started."""
        return self.ident is not None and not self.is_alive()

    def stop(self, state: str, reason: str, at_once: bool = False) -> None:
        """Asks the job to end; the first caller's state and reason count. `at_once`: no SIGTERM."""
        if self._wish is None:
            log.info("stopping: %s", reason, extra={"assignment": self.assignment.id})
            self._wish = End(state, reason)
        self._at_once = self._at_once or at_once

    def run(self) -> None:
        """Prepares, starts and watches the launch, and reports its end."""
        try:
            folder = self._prepare()
            keeper = self._start(folder)
        except OSError as error:
            reason = f"it cannot be started on this host: {(error.strerror or str(error)).lower()}"
            self._finish(End("failed", reason))
            return
        self._report_state(End("running"))
        results = Results(folder / "report", self._report_result)
        self._watch(keeper, results)
        end = self._how_it_ended(keeper.returncode)
        if not self.members.end(self._host.config.kill_wait_s):
            log.error("processes do not die", extra={"assignment": self.assignment.id})
            end = End(end.state, f"{end.reason}; processes do not die".lstrip("; "), end.exit_code)
        results.collect()
        if results.refused:
            end = End(end.state, "; ".join([end.reason, *results.refused[:5]]), end.exit_code)
        self._finish(end)

    def _prepare(self) -> Path:
        folder = self._host.data.run_folder(self.assignment.id)
        for name, document in (("plan", self.assignment.plan), ("graph", self.assignment.graph)):
            if document is not None:
                write_durably(folder / f"{name}.json", json.dumps(document).encode())
        pipes = folder / "pipes"
        pipes.mkdir(mode=0o700)
        for local in range(self.assignment.ranks_per_node):
            for stream in ("stdout", "stderr"):
                pipe = pipes / f"{local}.{stream}"
                os.mkfifo(pipe, 0o600)
                # Open for both: it neither waits for the rank nor ends when a rank closes it.
                handle = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
                self._listen(handle, self.assignment.first_rank + local, stream)
        return folder

    def _listen(self, handle: int, rank: int, stream: str) -> None:
        self._logs.add(handle, rank, stream)
        self._selector.register(handle, selectors.EVENT_READ)

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        """Starts the keeper. Raises `OSError`; then nothing was started."""
        assignment, jobs = self.assignment, self._host.data.jobs
        record = Record(assignment.id, assignment.token, host_boot())
        write_record(jobs, record)
        address = own_address(assignment)
        command = torchrun_command(assignment, address, folder / "pipes", self._program.command)
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), self._keeper_spec(), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._program.directory or folder,
            env=self._environment(folder, address),
            start_new_session=True,
        )
        self.pid = keeper.pid
        output, process = piped(keeper.stdout), process_of(keeper.pid)
        if process is None:
            keeper.terminate()
            keeper.wait()
            raise OSError(errno.ESRCH, "its process is not in /proc")
        self.members.keeper = process
        self._listen(os.dup(output.fileno()), assignment.first_rank, LAUNCHER)
        output.close()
        try:
            write_record(
                jobs, Record(**{**vars(record), "pid": process.pid, "start": process.start})
            )
        except OSError as error:
            # The first record and the marker in the environment are enough for the sweep.
            log.warning("the keeper is not recorded: %s", error)
        return keeper

    def _keeper_spec(self) -> str:
        return json.dumps(
            {
                "agent": os.getpid(),
                "grace_s": self._host.config.stop_grace_s,
                "file_bytes": self._host.config.file_limit_bytes or None,
                "scope": str(self._scope.procs) if self._scope else None,
            }
        )

    def _environment(self, folder: Path, address: str) -> dict[str, str]:
        return {
            "PYTHONUNBUFFERED": "1",
            **network_environment(address),
            **self._program.environment,
            **self._devices,
            **self._label(),
            "SHARDWISE_RUN_DIR": str(folder),
            "SHARDWISE_LAUNCH": self.assignment.launch,
            ASSIGNMENT_MARKER: self.assignment.id,
            AGENT_MARKER: self._host.agent_id,
        }

    def _label(self) -> dict[str, str]:
        """Returns the variables that tell ranks of what kind this host's devices are."""
        config = self._host.config
        if not config.kind:
            return {}
        return {KIND_VARIABLE: config.kind, SLOWED_VARIABLE: str(config.slowed)}

    def _watch(self, keeper: subprocess.Popen[bytes], results: Results) -> None:
        started = measured = now_s()
        while keeper.poll() is None:
            self._read(LOOK_S)
            clock = now_s()
            if clock - measured >= MEASURE_S:
                measured = clock
                self._measure()
                self._logs.flush()
                results.collect()
            limit_s = self._program.time_limit_s
            if limit_s and clock - started > limit_s:
                self.stop("failed", f"it ran longer than its limit of {limit_s:g} s")
            if self._wish is not None:
                self._press(clock)

    def _read(self, wait_s: float) -> bool:
        """Waits for output and reads it. Returns False if there was none."""
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            if not self._logs.read(key.fd) and self._logs.streams[key.fd].name == LAUNCHER:
                self._selector.unregister(key.fd)
        return bool(ready)

    def _measure(self) -> None:
        resident = self.members.resident_bytes()
        self._peak_bytes = max(self._peak_bytes, resident)
        limit = self._program.memory_limit_bytes
        if limit and resident > limit:
            text = f"it took {resident} bytes of memory, its limit is {limit}"
            self.stop("failed", text, at_once=True)

    def _press(self, clock: float) -> None:
        """Sends SIGTERM to the keeper once, and SIGKILL after the grace period, or at once."""
        grace_s = self._host.config.stop_grace_s + KEEPER_EXTRA_S
        if self._terminated_at is None:
            self._terminated_at = clock
            if self.members.keeper is not None:
                send(self.members.keeper, signal.SIGTERM)
        late_s = clock - self._terminated_at - grace_s
        if self._at_once or late_s > 0:
            self.members.kill(with_keeper=late_s > self._host.config.kill_wait_s)

    def _how_it_ended(self, code: int) -> End:
        if self._wish is not None and self._terminated_at is not None:
            return End(self._wish.state, self._wish.reason, code)
        if self._scope is not None and self._scope.out_of_memory():
            limit = self._program.memory_limit_bytes
            return End("failed", f"it took more memory than its limit of {limit} bytes", code)
        if code == 0:
            return End("done", exit_code=0)
        return self._failure(code)

    def _failure(self, code: int) -> End:
        for _ in range(READS_AT_END):
            if not self._read(0):
                break
        first = self.assignment.first_rank
        failure = failed_rank("\n".join(self._logs.last_lines(first, LAUNCHER)))
        if failure is None:
            last = self._logs.last_line(first, LAUNCHER)
            return End("failed", f"torchrun ended with status {code}: {last}"[:1000], code)
        local, rank_code = failure
        rank = first + local
        how = f"ended with status {rank_code}"
        if rank_code < 0:
            how = f"was killed by signal {-rank_code}"
        last = self._logs.last_line(rank, "stderr")
        return End("failed", f"rank {rank} {how}{': ' if last else ''}{last}"[:1000], rank_code)

    def _finish(self, end: End) -> None:
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
        self._selector.close()
        self._logs.close()
        for _, rank, stream in self._host.spool.dropped_lines(self.assignment.id):
            self._report_log(rank, stream, self._logs.next_line(rank, stream), [], 0)
        self._report_state(end)
        if not self._host.spool.trouble:
            # An end that is only in memory may be lost with the agent: then the record says so.
            remove_record(self._host.data.jobs, self.assignment.id)
        if self._scope is not None and not self._scope.remove():
            log.warning("the cgroup stays: %s", self._scope.path)

    def _report_state(self, end: End) -> None:
        fields = {"reason": end.reason, "exit_code": end.exit_code}
        if self._peak_bytes:
            fields["peak_rss_bytes"] = self._peak_bytes
        known = {name: value for name, value in fields.items() if value not in (None, "")}
        assignment = self.assignment
        self._host.spool.put("state", assignment.id, assignment.token, state=end.state, **known)
        self.state = end.state
        log.info("%s", end.state, extra={"assignment": assignment.id, "reason": end.reason})

    def _report_log(
        self, rank: int, stream: str, first_line: int, lines: list[str], dropped: int
    ) -> None:
        assignment = self.assignment
        self._host.spool.put(
            "log",
            assignment.id,
            assignment.token,
            rank=rank,
            stream=stream,
            first_line=first_line,
            lines=lines,
            dropped=dropped,
        )

    def _report_result(self, name: str, document: dict[str, object]) -> None:
        assignment = self.assignment
        self._host.spool.put(
            "result", assignment.id, assignment.token, name=name, document=document
        )
