"""Settings: one documented list; flags over environment over file over defaults.

Every setting is a field of `Settings` with its text; the environment variable is `SHARDWISE_` and
the name in capitals. docs/settings.md is this list, written by `python -m service.settings`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from service.urls import require_database_url, require_redis_url
from shardwise.errors import BadInput

PREFIX = "SHARDWISE_"
CONFIG_VARIABLE = "SHARDWISE_CONFIG"
FALLBACKS = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}
"""Variables without the prefix that platforms commonly set."""

FROM_FILE = "_FILE"
"""After a variable's name: it names a file with the value, as container platforms give secrets."""

_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?$", re.IGNORECASE)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def setting(default: Any, text: str) -> Any:
    """A field of `Settings` with what docs/settings.md says of it."""
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True)
class Settings:
    """How a service or a worker runs. `_bytes` are bytes (`64MiB` is read), `_s` seconds."""

    host: str = setting("127.0.0.1", "Address that `serve` binds; others than loopback need keys.")
    port: int = setting(8000, "Port that `serve` binds; 0 takes a free one and prints it.")
    data_dir: str = setting(
        "",
        "Folder of the embedded mode (SQLite file, lock); empty: the user's data directory.",
    )
    database_url: str = setting(
        "", "PostgreSQL or SQLite URL; empty: the embedded SQLite. `DATABASE_URL` is read too."
    )
    redis_url: str = setting(
        "", "Redis or Valkey URL; empty: one that `serve` starts itself. `REDIS_URL` is read too."
    )
    queue: str = setting("shardwise", "Name of the Celery queue; services may share a Redis.")
    log_level: str = setting("info", "debug, info, warning or error.")
    log_format: str = setting("auto", "json, text, or auto: text on a terminal, else json.")
    auth: str = setting(
        "auto", "auto: keys are needed unless bound to loopback and none exists; required: always."
    )
    allowed_hosts: str = setting(
        "", "Host names that an open (keyless) service answers beside loopback's, with commas."
    )
    concurrency: int = setting(0, "Solves at once in one worker; 0: one for two cores.")
    solve_threads: int = setting(0, "Threads of one solve; 0: all cores.")
    solve_time_s: float = setting(600.0, "Longest solve, then it is failed with that reason.")
    solve_memory_bytes: int = setting(8 * 2**30, "Address space of one solve (RLIMIT_AS).")
    lease_s: float = setting(30.0, "A worker that is silent for so long has lost its job.")
    heartbeat_s: float = setting(1.0, "How often progress and lease are written while solving.")
    sweep_s: float = setting(5.0, "How often workers look for jobs that nobody rings for.")
    ring_again_s: float = setting(15.0, "A job that is queued for so long is rung for again.")
    max_attempts: int = setting(3, "A job that kills its worker so often is failed.")
    stop_grace_s: float = setting(5.0, "What a stopping worker lets running solves have.")
    max_body_bytes: int = setting(64 * 2**20, "Largest request body, after decompression too.")
    max_gzip_ratio: int = setting(200, "Largest ratio of a gzip body beyond its first MiB.")
    max_json_depth: int = setting(64, "Deepest nesting of a JSON body.")
    max_operators: int = setting(100_000, "Most operators of an uploaded graph.")
    max_gpus: int = setting(4096, "Most GPUs of one question.")
    max_curve_gpus: int = setting(1024, "Most GPU counts of one curve.")
    ingest_time_s: float = setting(120.0, "Longest reading of one ONNX upload.")
    ingest_memory_bytes: int = setting(4 * 2**30, "Address space of reading an ONNX upload.")
    max_queued: int = setting(1000, "Jobs that a tenant may have queued or running.")
    max_graphs: int = setting(100_000, "Graphs that a tenant may store.")
    max_watched: int = setting(20, "Curves that a tenant may watch as metrics.")
    max_stored_bytes: int = setting(10 * 2**30, "Bytes of graphs that a tenant may store.")
    rate_per_s: float = setting(2000.0, "Requests a second of one key, in one process; 0: any.")
    rate_burst: int = setting(4000, "Requests that a key may make at once.")
    cache_bytes: int = setting(64 * 2**20, "Results that one service process keeps in memory.")
    auth_cache_s: float = setting(5.0, "How long a revoked key may still be taken.")
    policy_wait_s: float = setting(
        20.0, "How long SkyPilot's policy waits for advice; SkyPilot itself waits 30 s."
    )
    watch_s: float = setting(0.25, "How often watched jobs are looked at for their events.")
    max_watchers: int = setting(1000, "Event streams that one process serves at once.")
    agent_lease_s: float = setting(
        30.0, "An agent that is silent for so long is lost, its jobs too."
    )
    agent_heartbeat_s: float = setting(5.0, "How often agents are told to send a heartbeat.")
    claim_s: float = setting(60.0, "A launch that its agents do not all claim within is put back.")
    max_poll_s: float = setting(30.0, "Longest wait for an assignment in one call.")
    max_placements: int = setting(3, "A launch that is put back so often is failed.")
    rendezvous_ports: str = setting(
        "29400-29999", "Ports of the first agent where ranks meet, if its inventory names none."
    )
    max_agents: int = setting(1000, "Agents that a tenant may have.")
    max_launches: int = setting(1000, "Launches that a tenant may have queued or running.")
    max_reports: int = setting(256, "Reports of one call.")
    max_report_bytes: int = setting(16 * 2**20, "Largest body of reports or of a heartbeat.")
    max_log_lines: int = setting(20_000, "Lines of output kept of one launch; the oldest go.")
    max_log_bytes: int = setting(16 * 2**20, "Bytes of output kept of one launch; the oldest go.")
    log_s: float = setting(30 * 86400.0, "How long the output of ended launches is kept.")
    report_s: float = setting(30 * 86400.0, "How long the ids of reports are remembered.")
    enrol_rate_per_s: float = setting(10.0, "Enrolments a second from one address; 0: any.")
    idempotency_s: float = setting(86400.0, "How long an Idempotency-Key is remembered.")
    audit_s: float = setting(90 * 86400.0, "How long the audit is kept.")
    database_pool: int = setting(10, "PostgreSQL connections of one process.")
    worker_metrics_port: int = setting(0, "Port of a worker's own metrics; 0: none.")
    worker_metrics_host: str = setting("127.0.0.1", "Address of a worker's own metrics.")

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise BadInput(
                    f"{getattr(self, name)!r}", field=name, expected=", ".join(sorted(allowed))
                )
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                low = 0 if item.name in _MAY_BE_ZERO else 1e-3
                if not low <= value < float("inf"):
                    raise BadInput(f"{value}", field=item.name, expected="a number above 0")
        if self.port > 65535:
            raise BadInput(f"{self.port}", field="port", expected="0 to 65535")
        if self.heartbeat_s * 3 > self.lease_s:
            raise BadInput(
                f"{self.heartbeat_s}", field="heartbeat_s", expected="at most a third of lease_s"
            )
        if self.agent_heartbeat_s * 3 > self.agent_lease_s:
            raise BadInput(
                f"{self.agent_heartbeat_s}",
                field="agent_heartbeat_s",
                expected="at most a third of agent_lease_s",
            )
        if port_range(self.rendezvous_ports) is None:
            raise BadInput(
                f"{self.rendezvous_ports!r}",
                field="rendezvous_ports",
                expected="two ports from 1024 to 65535, such as 29400-29999",
            )
        require_database_url(self.database_url)
        require_redis_url(self.redis_url)

    @property
    def embedded(self) -> bool:
        """Whether `serve` brings its own broker and worker."""
        return not self.redis_url

    @property
    def folder(self) -> Path:
        """The data directory of the embedded mode."""
        if self.data_dir:
            return Path(self.data_dir).expanduser().absolute()
        from platformdirs import user_data_path

        return user_data_path("shardwise", appauthor=False)

    @property
    def database(self) -> str:
        """The SQLAlchemy URL."""
        url = self.database_url
        if not url:
            return f"sqlite:///{self.folder / 'shardwise.sqlite'}"
        scheme, _, rest = url.partition("://")
        return f"postgresql+psycopg://{rest}" if scheme.startswith("postgres") else url

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach the service."""
        return is_loopback(self.host)


_CHOICES = {
    "log_level": {"debug", "info", "warning", "error"},
    "log_format": {"auto", "json", "text"},
    "auth": {"auto", "required"},
}
_MAY_BE_ZERO = {"port", "concurrency", "solve_threads", "rate_per_s", "worker_metrics_port",
                "cache_bytes", "auth_cache_s", "stop_grace_s", "enrol_rate_per_s"}  # fmt: skip


def port_range(text: str) -> tuple[int, int] | None:
    """`29400-29999` as its two ends; None for what is no range of unprivileged ports."""
    match = re.fullmatch(r"(\d{4,5})-(\d{4,5})", text.strip())
    if match is None:
        return None
    low, high = int(match[1]), int(match[2])
    return (low, high) if 1024 <= low <= high <= 65535 else None


def is_loopback(host: str) -> bool:
    """Whether an address or name is this host's own."""
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_settings(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    """The settings in force. `BadInput` names the flag, the variable or the file's field."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    path = file or environment.get(CONFIG_VARIABLE)
    if path:
        values.update(_from_file(path))
    for item in fields(Settings):
        for variable in (FALLBACKS.get(item.name), PREFIX + item.name.upper()):
            text = _given(environment, variable) if variable else ""
            if text:
                values[item.name] = _read(item.name, text, variable or item.name)
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = _read(name, value, name)
    return Settings(**values)


def _given(environment: Mapping[str, str], variable: str) -> str:
    """The variable's text, or what the file holds that `variable`_FILE names; empty without."""
    text, path = environment.get(variable, ""), environment.get(variable + FROM_FILE, "")
    if not path:
        return text
    if text:
        raise BadInput("is set twice", field=variable, expected=f"it or {variable}{FROM_FILE}")
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise BadInput(reason.lower(), file=path, field=variable + FROM_FILE) from None


def _from_file(path: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(reason, file=path, expected="a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"not TOML: {error}", file=path) from None
    known = {item.name for item in fields(Settings)}
    for name in document:
        if name not in known:
            raise BadInput("unknown setting", file=path, field=name, expected="see docs/settings")
    return {name: _read(name, value, f"{path}: {name}") for name, value in document.items()}


def _read(name: str, value: Any, where: str) -> Any:
    default = next(item.default for item in fields(Settings) if item.name == name)
    try:
        if isinstance(default, str):
            if not isinstance(value, str):
                raise ValueError
            return value
        if isinstance(value, bool):
            raise ValueError
        if isinstance(default, int):
            return parse_size(value) if name.endswith("_bytes") else int(str(value))
        return float(value)
    except (TypeError, ValueError):
        kind = {str: "text", int: "a whole number", float: "a number"}[type(default)]
        raise BadInput(f"{value!r}", field=where, expected=kind) from None


def parse_size(value: str | int) -> int:
    """`64MiB`, `8GB` or a number, in bytes; ValueError for anything else."""
    if isinstance(value, int):
        return value
    match = _SIZE.match(value.strip())
    if match is None:
        raise ValueError(value)
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _UNITS[match[2].upper()])


def environment_of(settings: Settings) -> dict[str, str]:
    """The variables that give another process the same settings."""
    return {
        PREFIX + item.name.upper(): str(getattr(settings, item.name))
        for item in fields(Settings)
        if getattr(settings, item.name) != item.default
    }


def documentation() -> str:
    """docs/settings.md."""
    rows = []
    for item in fields(Settings):
        default = "" if item.default == "" else f"`{_shown(item.name, item.default)}`"
        rows.append(
            f"| `{PREFIX}{item.name.upper()}` | {default} | {item.metadata['text']} |".replace(
                "|  |", "| |"
            )
        )
    return "\n".join(
        [
            "# Settings",
            "",
            "Of `shardwise serve`, `worker`, `migrate`, `backup`, `restore` and `keys`; an agent "
            "has [its own](reference/agent-settings.md). Flags win over environment variables, "
            "those over a TOML file (`--config FILE` or `SHARDWISE_CONFIG`; keys are "
            "the names in small letters without the prefix), that over the defaults. A variable's "
            "name with `_FILE` after it names a file that holds the value, as container platforms "
            "give secrets. Sizes may be written `64MiB` or `8GB`; what ends in `_S` is seconds. "
            "This page is written by `python -m service.settings > docs/settings.md`.",
            "",
            "| variable | default | what it is |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        for unit, power in (("GiB", 3), ("MiB", 2)):
            if value % 1024**power == 0:
                return f"{value // 1024**power}{unit}"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


if __name__ == "__main__":
    print(documentation(), end="")
