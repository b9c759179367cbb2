"""Starts our programs as processes that have imported them already.

Importing a service or a worker costs two to three seconds of a core, a solve's process one. Tests
start hundreds. One process, the warm one, imports them all and starts no thread; a program is a
fork of it that is a child of whoever asks (`CLONE_PARENT`), so that the asker waits for it, kills
it and reads its status as of any child. Services and workers that were started so fork a warm
process of their own at once, for their solves and uploads. What a program does from its `__main__`
on is its own code; only the start of Python and the imports are left out.

On other systems than Linux, with another import path, and in benchmarks, programs start as users
start them. So do those of tests about the start itself (`App.warm`).

Solves and uploads do not give way here (`service.base.background`): a test waits for them, and on a
machine that does much else they would get a thirtieth of a core.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]

PARENTS = ("worker",)
"""Programs that start others; of `shardwise` these are the commands `serve` and `worker`."""

PROGRAMS = (
    *PARENTS, "shardwise.cli.main", "worker.child", "service.questions.ingest_child",
    "service.questions.digest_child",
)  # fmt: skip

PRELOAD = (
    "harness.fixed_day", *PROGRAMS[1:], "service.host.commands", "service.host.serve",
    "service.questions.question", "service.questions.upload", "shardwise.answers",
    "shardwise.capture.onnx.capture",
    "worker.app", "worker.commands", "celery.apps.worker", "celery.concurrency.thread",
    "celery.worker.consumer.tasks", "celery.worker.strategy", "kombu.transport.redis",
    "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite.pysqlite",
)  # fmt: skip
"""What the programs import at their start or at their first work."""

CLONE_PARENT = 0x8000
CLONE_CALLS = {"x86_64": 56, "aarch64": 220}
TITLE_BYTES = 4000
_SAFE = [sys.executable, "-P", "-m"]
_BOUND = [*_SAFE, "shardwise.child_process"]
_SIZE = struct.Struct("!q")

_allowed = False
_asking = threading.Lock()
_warm: socket.socket | None = None
_server: subprocess.Popen[bytes] | None = None


def possible() -> bool:
    """Returns whether this system can fork a sibling."""
    return sys.platform == "linux" and platform.machine() in CLONE_CALLS


def allow() -> None:
    """Lets `Popen` fork from a warm process, which the first use starts."""
    global _allowed
    _allowed = possible()


def _start() -> None:
    global _server, _warm
    ours, theirs = socket.socketpair()
    code = f"from harness.warm import serve_first; serve_first({theirs.fileno()})"
    _server = subprocess.Popen(
        [sys.executable, "-P", "-c", code, "x" * TITLE_BYTES],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    _warm = ours
    atexit.register(stop)


def stop() -> None:
    """Ends the warm process; what was forked from it goes on."""
    global _allowed, _server, _warm
    if _warm is not None and _server is not None:
        _warm.close()
        _server.wait()
    _allowed, _warm, _server = False, None, None


class Popen(subprocess.Popen[bytes]):
    """A process as `subprocess.Popen` starts it, forked from the warm process if that can be."""

    def _execute_child(  # type: ignore[override]
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any,
        cwd: Any, env: Mapping[str, str] | None, startupinfo: Any, creationflags: Any, shell: Any,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any, start_new_session: bool,
        process_group: int = -1,
    ) -> None:  # fmt: skip
        program = None if shell or pass_fds or preexec_fn else program_of(args)
        variables = dict(os.environ if env is None else env)
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        if _allowed and _warm is None and program is not None:
            _start()
        if program is None or _warm is None or variables.get("PYTHONPATH") != str(ROOT):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                creationflags, shell, *pipes, restore_signals, gid, gids, uid, umask,
                start_new_session, process_group,
            )  # fmt: skip
            return
        request = {
            **program,
            "command": [os.fsdecode(argument) for argument in args],
            "env": variables,
            "cwd": os.fsdecode(cwd or Path.cwd()),
            "new_session": start_new_session,
        }
        given = (p2cread, c2pwrite, errwrite)
        self.pid = _ask(request, [n if fd == -1 else fd for n, fd in enumerate(given)])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def forked(pid: int) -> bool:
    """Returns whether a process was forked from a warm one, whose command line has room."""
    return len(Path(f"/proc/{pid}/cmdline").read_bytes()) >= TITLE_BYTES


def program_of(command: Any) -> dict[str, Any] | None:
    """Returns the program of a command line and its arguments; None if it is not one of ours."""
    words = [] if isinstance(command, str | bytes | Path) else list(command)
    dies_with = None
    if words[: len(_BOUND)] == _BOUND and words[len(_BOUND) + 1 : len(_BOUND) + 2] == ["--"]:
        dies_with = int(words[len(_BOUND)])
        words = words[len(_BOUND) + 2 :]
    if words[: len(_SAFE)] != _SAFE or len(words) < 4 or words[3] not in PROGRAMS:
        return None
    return {"module": words[3], "arguments": words[4:], "dies_with": dies_with}


def _ask(request: dict[str, Any], fds: Sequence[int]) -> int:
    """Has a process forked, and returns its id."""
    content = json.dumps(request).encode()
    with _asking:
        assert _warm is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        _warm.sendmsg([_SIZE.pack(len(content))], rights)
        _warm.sendall(content)
        answer = _read(_warm, _SIZE.size)
    if answer is None:
        raise OSError("the warm process has ended")
    return int(_SIZE.unpack(answer)[0])


def _read(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def serve_first(descriptor: int) -> NoReturn:
    """The warm process of a test process: imports everything, then forks."""
    for module in PRELOAD:
        importlib.import_module(module)
    subprocess.Popen = Popen  # type: ignore[misc]
    background = importlib.import_module("service.base.background")
    background.give_way = lambda by: None
    gc.collect()
    gc.freeze()
    _live(socket.socket(fileno=descriptor))


def _live(channel: socket.socket) -> NoReturn:
    """Forks what is asked for. What is forked goes on here too: as a program, or to serve it."""
    global _warm
    while True:
        request = _serve(channel)
        if not _starts_others(request):
            break
        _warm, channel = socket.socketpair()
        if own := os.fork():
            channel.close()
            atexit.register(_end_own, own)
            break
        _warm.close()
        _warm = None
        _set_title(["warm"])
    _run(request)


def _end_own(pid: int) -> None:
    """Ends this program's warm process: a program that has ended leaves none behind."""
    assert _warm is not None
    _warm.close()
    os.waitpid(pid, 0)


def _starts_others(request: dict[str, Any]) -> bool:
    return request["module"] in PARENTS or request["arguments"][:1] in (["serve"], ["worker"])


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Forks until nobody can ask any more, and then ends. In a fork, returns what it is to be."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        head, ancillary, _, _ = channel.recvmsg(_SIZE.size, socket.CMSG_SPACE(3 * 4))
        if not head:
            os._exit(0)
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data)
        content = _read(channel, _SIZE.unpack(head)[0])
        assert content is not None and len(fds) == 3
        pid = _fork_sibling()
        if pid == 0:
            channel.close()
            request: dict[str, Any] = json.loads(content)
            _take_place(request, fds)
            return request
        for fd in fds:
            os.close(fd)
        channel.sendall(_SIZE.pack(pid))


def _fork_sibling() -> int:
    """Forks a child of this process's own parent. Returns 0 in it, here its id."""
    python, c = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    python.PyOS_BeforeFork()
    pid = c.syscall(CLONE_CALLS[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return int(pid)


def _take_place(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Gives this process the files, folder, variables, session and title of a program."""
    if request["new_session"]:
        os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, max(fds) + 1)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    tempfile.tempdir = None  # else the warm process's TMPDIR
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = [request["module"], *request["arguments"]]
    _set_title(request["command"])


def _set_title(words: Sequence[str]) -> None:
    """Replaces what /proc tells of the command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    title = b"\0".join(os.fsencode(word) for word in words)[: end - begin - 1]
    ctypes.memmove(begin, title.ljust(end - begin, b"\0"), end - begin)


def _run(request: dict[str, Any]) -> NoReturn:
    """Runs a program to its end, as `python -m` does."""
    if request["dies_with"] is not None:
        from shardwise.child_process import die_with_parent

        die_with_parent(request["dies_with"])
    sys.modules.pop(request["module"], None)  # else a warning that it is imported twice
    status = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int):
            status = end.code
        elif end.code is not None:
            print(end.code, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
