"""N ranks as processes of this machine; all end when one fails or the starter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

from shardwise.child_process import die_with_parent
from shardwise.errors import ShardwiseError
from shardwise.measure.cores import allowed_cores
from shardwise.measure.rank import SLACK_S
from shardwise.measure.world import JOIN_S, STORE_VARIABLE

PARENT_VARIABLE = "SHARDWISE_MEASURE_PARENT"
POLL_S = 0.05
GRACE_S = 5.0


class RankFailed(ShardwiseError):
    """A rank that was started here ended with an error; message and exit code are its own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code if exit_code in (1, 2) else 1


def run_ranks(
    ranks: int, arguments: Sequence[str], limit_s: float, heard: Callable[[str], None]
) -> bytes:
    """Runs `python -m shardwise.measure` as `ranks` local ranks; returns rank 0's profile.

    `heard` gets each line that rank 0 prints, the first when all have joined: the time limit counts
    from there, so that a slow start of the processes does not shorten the measurement. Raises
    `RankFailed` with the first failed rank's last line, `TimeoutError` when the ranks do not join
    within `JOIN_S` or are far beyond the time limit. No process is left behind, whatever ends this
    one.
    """
    with tempfile.TemporaryDirectory(prefix="shardwise-measure-") as folder:
        place = Path(folder)
        profile = place / "profile.json"
        command = [sys.executable, "-m", "shardwise.measure", "-o", str(profile), *arguments]
        with _started(command, ranks, place) as processes:
            _await(processes, place, limit_s, heard)
        return profile.read_bytes()


@contextmanager
def _started(
    command: Sequence[str], ranks: int, place: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    cores = len(allowed_cores())
    with _terminated_like_interrupted():
        try:
            for rank in range(ranks):
                environment = {
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    STORE_VARIABLE: str(place / "store"),
                    PARENT_VARIABLE: str(os.getpid()),
                }
                environment.setdefault("OMP_NUM_THREADS", str(max(cores // ranks, 1)))
                out = (place / f"out-{rank}").open("wb")
                err = (place / f"err-{rank}").open("wb")
                with out, err:
                    # A session of its own: Ctrl-C comes to the starter, which ends the ranks.
                    process = subprocess.Popen(
                        command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    )
                processes.append(process)
            yield processes
        finally:
            _end(processes)


def _await(
    processes: Sequence[subprocess.Popen[bytes]],
    place: Path,
    limit_s: float,
    heard: Callable[[str], None],
) -> None:
    deadline = monotonic() + JOIN_S
    late = f"the ranks did not start and find each other within {JOIN_S:g} s"
    joined = False
    with (place / "out-0").open(encoding="utf-8", errors="replace") as output:
        while True:
            for line in output:
                if not joined:
                    joined = True
                    deadline = monotonic() + limit_s + SLACK_S
                    late = f"the ranks did not end within {limit_s:g} s and {SLACK_S:g} s"
                heard(line.rstrip())
            codes = [process.poll() for process in processes]
            if any(codes):
                raise _reason(processes, place)
            if all(code == 0 for code in codes):
                return
            if monotonic() > deadline:
                raise TimeoutError(late)
            still = next(p for p, code in zip(processes, codes, strict=True) if code is None)
            with suppress(subprocess.TimeoutExpired):
                still.wait(POLL_S)


def _reason(processes: Sequence[subprocess.Popen[bytes]], place: Path) -> RankFailed:
    """Returns the error in the last line of a failed rank, preferring one that lost no others."""
    failures = []
    for rank, process in enumerate(processes):
        code = process.poll()
        if not code:
            continue
        text = (place / f"err-{rank}").read_text(errors="replace").strip()
        last = text.splitlines()[-1] if text else ""
        last = last.removeprefix("shardwise: error: ")
        failures.append(RankFailed(last or f"rank {rank} ended {_how(code)}", code))
    return next((f for f in failures if "lost another rank" not in str(f)), failures[0])


def _how(code: int) -> str:
    return f"with signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = monotonic() + GRACE_S
    for process in processes:
        try:
            process.wait(max(deadline - monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP unwind like Ctrl-C, so that ranks end and folders are removed."""

    def unwind(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = {s: signal.signal(s, unwind) for s in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not the main thread, to which signals do not come
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_starter() -> None:
    """Asks the kernel, in a rank that was started here, to end it with its starter (Linux only)."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        die_with_parent(int(parent))
