"""Child processes end with their parent and keep within their limits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwise.child_process import watch_over

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
IMPORT = "import os, signal, subprocess, sys, time\nfrom shardwise.child_process import *\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code that has all of the module's names."""
    return subprocess.run(
        [sys.executable, "-c", IMPORT + code],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def started_by_a_parent_that_is_killed(tmp_path: Path, popen: str, program: str) -> int:
    """Returns the pid that `program` wrote; the process that has run `popen` of it is killed."""
    note = tmp_path / "pid"
    write_pid = f"open({str(note)!r}, 'w').write(str(os.getpid()))"
    code = IMPORT + f"program = {program.replace('TELL', write_pid)!r}\n{popen}\ntime.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT) as parent:
        _wait_until(lambda: note.exists() and note.read_text() != "")
        parent.kill()
    return int(note.read_text())


def test_a_program_ends_with_its_parent(tmp_path: Path) -> None:
    pid = started_by_a_parent_that_is_killed(
        tmp_path,
        "subprocess.Popen(ending_with_us([sys.executable, '-c', program]))",
        "import os, time; TELL; time.sleep(60)",
    )
    _wait_until(lambda: _gone(pid))


def test_the_end_may_come_as_a_signal_that_can_be_handled(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    program = (
        f"{IMPORT}"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(ended)!r}, 'w'), os._exit(0)))\n"
        "die_with_parent(os.getppid(), death_signal=signal.SIGTERM)\nTELL\ntime.sleep(60)\n"
    )
    pid = started_by_a_parent_that_is_killed(
        tmp_path, "subprocess.Popen([sys.executable, '-c', program])", program
    )
    _wait_until(lambda: _gone(pid))
    assert ended.exists()


def test_a_process_whose_parent_has_already_ended_exits() -> None:
    done = run("die_with_parent(os.getppid() + 1)\nprint('still here')\n")
    assert (done.returncode, done.stdout) == (1, "")


def test_where_the_kernel_cannot_signal_the_parents_death_the_parent_is_watched() -> None:
    """As on macOS: here as a child whose parent is said to be another process."""
    started = time.monotonic()
    assert watch_over(os.getppid() + 10**6, [sys.executable, "-c", "import time; time.sleep(60)"])
    assert time.monotonic() - started < 10
    assert watch_over(os.getppid(), [sys.executable, "-c", "raise SystemExit(7)"]) == 7


def test_orphans_are_adopted() -> None:
    """The child starts a process and ends: that process becomes ours, and we can wait for it."""
    done = run(
        "adopt_orphans()\n"
        'child = \'import subprocess; print(subprocess.Popen(["sleep", "0.2"]).pid)\'\n'
        "told = subprocess.run([sys.executable, '-c', child], stdout=subprocess.PIPE)\n"
        "assert os.waitpid(int(told.stdout), 0)[1] == 0\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("limits", "code", "expected"),
    [
        ("", "print(resource.getrlimit(resource.RLIMIT_CORE))", "(0, 0)"),
        ("memory_bytes=2**29", "bytearray(2**30)", "MemoryError"),
        (
            "file_bytes=10",
            "os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 11)",
            "File too large",
        ),
        ("processor_s=5", "print(resource.getrlimit(resource.RLIMIT_CPU))", "(5, 5)"),
    ],
)
def test_limits_hold(tmp_path: Path, limits: str, code: str, expected: str) -> None:
    done = run(
        f"import resource\npath = {str(tmp_path / 'file')!r}\nlimit_process({limits})\n{code}\n"
    )
    assert expected in done.stdout + done.stderr


def test_a_limit_of_none_stays_as_it_is() -> None:
    done = run(
        "import resource\n"
        "limits = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)\n"
        "before = [resource.getrlimit(limit) for limit in limits]\n"
        "limit_process()\n"
        "assert before == [resource.getrlimit(limit) for limit in limits]\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_it_starts_fast() -> None:
    """Each rank of a launch goes through it: nothing is imported that takes long."""
    code = (
        f"import sys\nsys.path.append({str(ROOT)!r})\nimport ctypes, os, signal\n"
        "before = set(sys.modules)\nimport shardwise.child_process\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    expected = {"__future__", "shardwise", "shardwise.child_process", "shardwise.errors"}
    assert set(done.stdout.split()) == expected


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def _wait_until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
