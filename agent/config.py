"""agent.toml: what the host's administrator allows.

Each field has its text here; docs/reference/agent-settings.md is made from them
(tools/reference/agent_settings.py).
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.names import safe_name, variable_name
from agent.toml_fields import Fields
from shardwise.errors import BadInput
from shardwise.measure.labels import checked_kind
from shardwise.measure.slowed import Slowed

INHERITED = (
    "CUDA_HOME", "GLOO_SOCKET_IFNAME", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME",
    "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "PATH", "PYTHONPATH", "SSL_CERT_FILE", "TMPDIR", "TZ",
    "USER", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables of the agent itself that its launches see: set by the host, never by a launch."""

REFUSED = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|PATH|HOME|SHELL|IFS|ENV|BASH_.*|SHARDWISE_.*|TORCHELASTIC_.*"
    r"|TORCHRUN_.*|PET_.*|MASTER_ADDR|MASTER_PORT|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)"
    r"|ROLE_NAME|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|MALLOC_.*|GCONV_PATH|LOCPATH"
    r"|TMPDIR|GIT_.*|.*_PRELOAD|CUDA_INJECTION.*|NCCL_(NET|TUNER|PROFILER)_PLUGIN"
)
"""Variables that no launch may set, whatever the configuration says: they choose what is loaded
and run, or they are what the agent and torchrun tell the ranks."""


def setting(default: Any, text: str) -> Any:
    """Returns a field of the configuration with its text in the documentation."""
    return field(default=default, metadata={"text": text})


NO_ARGUMENT = re.compile(r"(?!)")
"""Matches nothing."""


@dataclass(frozen=True)
class EntryPoint:
    """A program that launches may name. `allow_arguments`: what each argument must match in full;
    None allows any. Without the field none is allowed."""

    name: str
    command: tuple[str, ...] = field(
        metadata={
            "text": "Argument list. `python` is the agent's own interpreter, other names are "
            "searched in PATH, paths are absolute."
        }
    )
    description: str = setting("", "Shown in the inventory.")
    allow_arguments: re.Pattern[str] | None = field(
        default=NO_ARGUMENT,
        metadata={
            "text": "`true`: any; `false`, the default: none; a regular expression that each "
            "argument must match in full."
        },
    )
    directory: str = setting("", "Where it is started; empty: the launch's run folder.")

    @property
    def arguments_allowed(self) -> str:
        """What launches may pass, for people."""
        if self.allow_arguments is None:
            return "any arguments"
        if self.allow_arguments == NO_ARGUMENT:
            return "no arguments"
        return f"arguments that match {self.allow_arguments.pattern}"


@dataclass(frozen=True)
class LogLimits:
    """How much of the ranks' output is kept, in bytes."""

    line_bytes: int = setting(4096, "Kept of one line; 80 to 4096.")
    rank_bytes: int = setting(
        16 * 2**20,
        "Kept of a rank; beyond it lines are counted, and the last 100 of each stream kept.",
    )
    total_bytes: int = setting(64 * 2**20, "Kept of a launch; beyond it as for a rank.")


@dataclass(frozen=True)
class Config:
    """The agent's configuration. Sizes are bytes, `_s` seconds."""

    entry_points: dict[str, EntryPoint] = field(default_factory=dict)
    environment: frozenset[str] = setting(
        frozenset({"OMP_NUM_THREADS", "NCCL_DEBUG"}), "Variables that a launch may set."
    )
    inherit: tuple[str, ...] = setting(
        INHERITED, "Variables of the agent that launches see; all others are hidden from them."
    )
    slots: int = setting(
        0,
        "Ranks at the same time, each with a GPU where there are some; 0: one per GPU, without "
        "GPUs one per CPU.",
    )
    ports: tuple[int, int] = setting(
        (29500, 29599),
        "First and last port of those where ranks meet, if this host is the first of a launch.",
    )
    addresses: tuple[str, ...] = setting(
        (),
        "Where ranks of other hosts look for this one, the first; empty: all but loopback and "
        "link-local.",
    )
    memory_limit_bytes: int = setting(
        0, "Most memory of a launch here; also its own limit if it asks for none; 0: no limit."
    )
    time_limit_s: float = setting(
        86400.0, "Longest launch; also its own limit if it asks for none; 0: no limit."
    )
    file_limit_bytes: int = setting(
        0, "Largest file that a rank may write (RLIMIT_FSIZE); 0: no limit."
    )
    stop_grace_s: float = setting(30.0, "From SIGTERM to SIGKILL.")
    kill_wait_s: float = setting(
        10.0, "From SIGKILL until the host is drained for a process that does not die."
    )
    spool_bytes: int = setting(
        256 * 2**20, "Reports that wait for the service; beyond it the oldest log lines go."
    )
    keep_runs_s: float = setting(7 * 86400.0, "How long run folders are kept.")
    kind: str = setting(
        "",
        "What kind of device this host has, where its name does not say so: CPUs, or GPUs that "
        "profiles call otherwise. Launches on several kinds go by it; empty: the devices' names.",
    )
    slowed: float = setting(
        1.0,
        "How many times as slow this host computes in measurements and runs of plans, 1 to 4 in "
        "quarters: to try several kinds on CPUs. Needs `kind`.",
    )
    cgroup: str = setting(
        "auto",
        "`auto`: below the agent's own; `off`; or the folder of a cgroup v2 that is the agent's "
        "to divide.",
    )
    logs: LogLimits = LogLimits()


def load_config(path: str | os.PathLike[str] | None) -> Config:
    """Reads agent.toml; without a path only the built-in entry points are allowed.

    Raises `BadInput` that names file and field.
    """
    if path is None:
        return Config()
    name = os.fspath(path)
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise BadInput(
            (error.strerror or str(error)).lower(),
            file=name,
            expected="a file that the agent can read",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"not valid TOML: {error}", file=name, expected="TOML") from None
    try:
        return _read(Fields(document))
    except BadInput as error:
        raise error.in_file(name) from None


def _read(top: Fields) -> Config:
    default = Config()
    config = Config(
        entry_points=_entry_points(top.table("entry_points")),
        environment=_environment(top.strings("environment", tuple(sorted(default.environment)))),
        inherit=tuple(
            variable_name(name, "inherit") for name in top.strings("inherit", default.inherit)
        ),
        slots=top.integer("slots", default.slots, low=0, high=4096),
        ports=_ports(top),
        addresses=top.strings("addresses", ()),
        memory_limit_bytes=top.size("memory_limit_bytes", default.memory_limit_bytes),
        time_limit_s=top.seconds("time_limit_s", default.time_limit_s),
        file_limit_bytes=top.size("file_limit_bytes", default.file_limit_bytes),
        stop_grace_s=top.seconds("stop_grace_s", default.stop_grace_s),
        kill_wait_s=top.seconds("kill_wait_s", default.kill_wait_s),
        spool_bytes=top.size("spool_bytes", default.spool_bytes, low=2**20),
        keep_runs_s=top.seconds("keep_runs_s", default.keep_runs_s),
        **_label(top),
        cgroup=top.text("cgroup", default.cgroup),
        logs=_logs(top.table("logs"), default.logs),
    )
    top.nothing_else()
    if config.cgroup not in ("auto", "off") and not config.cgroup.startswith("/"):
        raise BadInput(f"got {config.cgroup!r}", field="cgroup", expected="auto, off or a folder")
    return config


def _label(top: Fields) -> dict[str, Any]:
    """Returns `kind` and `slowed`; refuses what a rank would."""
    kind, slowed = top.text("kind", ""), top.raw("slowed", 1.0)
    if isinstance(slowed, bool) or not isinstance(slowed, int | float):
        raise BadInput(f"got {slowed!r}", field="slowed", expected="a number of times from 1 to 4")
    if kind:
        checked_kind(kind, "kind")
    try:
        times = float(Slowed(float(slowed)).times)
    except BadInput as refused:
        raise BadInput(f"got {slowed!r}", field="slowed", expected=refused.expected) from None
    if times != 1 and not kind:
        raise BadInput("is missing", field="kind", expected="a kind where `slowed` is set")
    return {"kind": kind, "slowed": times}


def _logs(table: Fields, default: LogLimits) -> LogLimits:
    limits = replace(
        default,
        line_bytes=table.size("line_bytes", default.line_bytes, low=80, high=4096),
        rank_bytes=table.size("rank_bytes", default.rank_bytes, low=4096),
        total_bytes=table.size("total_bytes", default.total_bytes, low=4096),
    )
    table.nothing_else()
    return limits


def _ports(top: Fields) -> tuple[int, int]:
    low, high = top.integers("ports", (29500, 29599), count=2)
    if not 1024 <= low <= high <= 65535:
        raise BadInput(f"[{low}, {high}]", field="ports", expected="[first, last] in 1024 to 65535")
    return low, high


def _environment(names: tuple[str, ...]) -> frozenset[str]:
    for name in names:
        if REFUSED.fullmatch(variable_name(name, "environment")):
            raise BadInput(
                f"{name} cannot be set by a launch",
                field="environment",
                expected="`inherit`, if the launches are to see the agent's own value",
            )
    return frozenset(names)


def _entry_points(tables: Fields) -> dict[str, EntryPoint]:
    points = {}
    for name in tables.names():
        safe_name(name, "entry_points")
        if name.startswith("shardwise."):
            raise BadInput(
                f"{name} is built in",
                field="entry_points",
                expected="another name than shardwise.…",
            )
        table = tables.table(name)
        points[name] = EntryPoint(
            name,
            _command(table),
            table.text("description", ""),
            _arguments(table),
            table.text("directory", ""),
        )
        table.nothing_else()
    return points


def _command(table: Fields) -> tuple[str, ...]:
    command = table.strings("command", ())
    if not command or not all(command) or any("\0" in part for part in command):
        raise BadInput(
            "missing or empty",
            field=table.path("command"),
            expected='a list such as ["python", "-m", "package.module"]',
        )
    if "/" in command[0] and not command[0].startswith("/"):
        raise BadInput(
            f"got {command[0]!r}",
            field=table.path("command"),
            expected="an absolute path, or a name that is searched in PATH",
        )
    return command


def _arguments(table: Fields) -> re.Pattern[str] | None:
    wish = table.raw("allow_arguments", False)
    path = table.path("allow_arguments")
    if isinstance(wish, bool):
        return None if wish else NO_ARGUMENT
    if not isinstance(wish, str):
        raise BadInput(f"got {wish!r}", field=path, expected="true, false or a regular expression")
    try:
        return re.compile(wish)
    except re.error as error:
        raise BadInput(
            f"not a regular expression: {error}",
            field=path,
            expected="a regular expression of Python",
        ) from None
