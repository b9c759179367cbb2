"""Settings: one documented list; flags over environment over file over defaults.

Every setting is a field of `Settings` with its text; the environment variable is `SHARDWISE_` and
the name in capitals. docs/reference/settings.md is this list.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from service.base.addresses import trusted_networks
from service.base.login_required import require_login
from service.base.public_address import read_networks
from service.base.urls import require_database_url, require_redis_url
from shardwise.errors import BadInput
from shardwise.sizes import parse_size

PREFIX = "SHARDWISE_"
CONFIG_VARIABLE = "SHARDWISE_CONFIG"
FALLBACKS = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}
"""Variables without the prefix that platforms commonly set."""

FROM_FILE = "_FILE"
"""Suffix of a variable that names a file with the value, as container platforms pass secrets."""

_PAUSE = re.compile(r"[0-9]{1,7}(\.[0-9]{1,3})?")
MIN_WEBHOOK_KEY = 32


def setting(default: Any, text: str) -> Any:
    """Returns a field of `Settings` with what docs/reference/settings.md says of it."""
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True)
class Settings:
    """How a service or a worker runs. `_bytes` are bytes (`64MiB` is read), `_s` seconds."""

    host: str = setting("127.0.0.1", "Address that `serve` binds; any but loopback needs keys.")
    port: int = setting(8000, "Port that `serve` binds; 0 takes a free one and prints it.")
    data_dir: str = setting(
        "",
        "Folder of the embedded mode (SQLite file, lock); empty: the user's data directory.",
    )
    graphs_dir: str = setting(
        "",
        "Folder of graphs that all tenants may name: `preset:llama3-8b` is llama3-8b.json.gz in "
        "it, as `shardwise capture` writes it.",
    )
    docs_dir: str = setting(
        "",
        "Folder of the documentation as `make docs` builds it, which is then served at `/manual/` "
        "and linked from the page; read at start. Empty: none.",
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
    tls_cert: str = setting(
        "",
        "PEM file with the certificate of `serve`, followed by its chain; checked every few "
        "seconds. Empty: plain HTTP.",
    )
    tls_key: str = setting(
        "", "PEM file with its private key; empty: the key is in `tls_cert`'s file."
    )
    tls_client_ca: str = setting(
        "",
        "PEM file with the authorities of clients' certificates; with it, only clients with such "
        "a certificate may read `/metrics`.",
    )
    auth: str = setting(
        "auto", "auto: keys are needed unless bound to loopback and none exists; required: always."
    )
    public_url: str = setting(
        "", "Address by which browsers reach the service, `https://shardwise.example`; for logins."
    )
    oidc_issuer: str = setting(
        "", "OpenID provider whose users may sign in; keys are then needed even on loopback."
    )
    oidc_name: str = setting("single sign-on", "What the sign-in page calls the provider.")
    oidc_client_id: str = setting("", "Our name at the provider.")
    oidc_client_secret: str = setting("", "Our secret at the provider; empty: a public client.")
    oidc_client_auth: str = setting(
        "auto", "How the secret is sent: basic, post, or auto: basic if the provider offers it."
    )
    oidc_scopes: str = setting("openid profile email groups", "What the provider is asked for.")
    oidc_groups_claim: str = setting(
        "groups", "Claim with a person's groups; a dotted path reaches into objects."
    )
    oidc_rules_file: str = setting(
        "", "TOML file that says which groups have which tenants and scopes (how-to/sign-in.md)."
    )
    oidc_audience: str = setting(
        "", "Audience of the provider's access tokens that `/v1` accepts; empty: it accepts none."
    )
    session_s: float = setting(
        8 * 3600.0, "How long a login lasts; changes of groups take effect at the next one."
    )
    allowed_hosts: str = setting(
        "", "Host names that an open (keyless) service answers besides loopback, with commas."
    )
    concurrency: int = setting(
        0, "Solves at once in one worker (its slots); 0: one for two cores, at least 2."
    )
    solve_threads: int = setting(0, "Threads of one solve; 0: the cores over the slots.")
    short_job_s: float = setting(
        10.0, "A worker of several slots keeps one for jobs estimated below this; 0: none."
    )
    max_running: int = setting(0, "Jobs that a tenant may have running at once; 0: any number.")
    solve_time_s: float = setting(
        600.0,
        "Longest solve; then the job fails with that reason; a curve ends with what it knows.",
    )
    count_time_s: float = setting(
        0.0,
        "Longest time of one count of a curve, which is then left out; 0: a quarter of the job's.",
    )
    solve_memory_bytes: int = setting(8 * 2**30, "Address space of one solve (RLIMIT_AS).")
    lease_s: float = setting(30.0, "After this long without a heartbeat a worker has lost its job.")
    heartbeat_s: float = setting(1.0, "How often progress and lease are written while solving.")
    sweep_s: float = setting(5.0, "How often workers look for jobs that were not announced.")
    ring_again_s: float = setting(15.0, "Wait until a job that is still queued is announced again.")
    max_attempts: int = setting(3, "Attempts after which a job that kills its workers fails.")
    stop_grace_s: float = setting(5.0, "Time that a stopping worker gives to running solves.")
    max_connections: int = setting(
        4000, "Connections that one process serves at once; fewer where it may open fewer files."
    )
    max_connections_per_address: int = setting(
        1000, "Of them, from one address (for IPv6, one /64); trusted proxies have no limit."
    )
    max_head_bytes: int = setting(64 * 2**10, "Longest request line and headers, together.")
    head_s: float = setting(
        10.0, "Longest wait for the request line and headers, and for the TLS handshake."
    )
    body_silence_s: float = setting(30.0, "Longest wait for the next piece of a body.")
    max_body_bytes: int = setting(64 * 2**20, "Largest request body, after decompression too.")
    max_gzip_ratio: int = setting(200, "Largest ratio of a gzip body beyond its first MiB.")
    max_json_depth: int = setting(64, "Deepest nesting of a JSON body.")
    max_operators: int = setting(100_000, "Most operators of an uploaded graph.")
    max_gpus: int = setting(4096, "Most GPUs of one question.")
    max_curve_gpus: int = setting(1024, "Most GPU counts of one curve.")
    max_keys: int = setting(
        200, "Keys in force that a tenant may have, without its agents' own keys."
    )
    max_exports: int = setting(16, "Archives of tenants that one process writes at once.")
    exports_share: int = setting(2, "Of those, how many may be one tenant's.")
    ingest_time_s: float = setting(120.0, "Longest time to read one upload.")
    ingest_memory_bytes: int = setting(4 * 2**30, "Address space of reading an upload.")
    ingest_slots: int = setting(0, "Uploads that one process reads at once; 0: one for each core.")
    ingest_share: int = setting(0, "Of those, how many may be one tenant's; 0: half of them.")
    uploads_at_once: int = setting(
        16, "Uploads of one tenant that one process handles or queues at once; beyond it 429."
    )
    bodies_bytes: int = setting(
        512 * 2**20, "Bodies that one process holds at once; of one tenant a quarter of it."
    )
    calls_waiting: int = setting(
        256, "Calls of one tenant that may wait for a thread of one process; beyond it 429."
    )
    max_queued: int = setting(1000, "Jobs that a tenant may have queued or running.")
    max_graphs: int = setting(100_000, "Graphs that a tenant may store.")
    max_watched: int = setting(20, "Curves that a tenant may watch as metrics.")
    max_stored_bytes: int = setting(10 * 2**30, "Bytes of graphs that a tenant may store.")
    max_profiles: int = setting(1000, "Hardware profiles that a tenant may store.")
    max_profile_bytes: int = setting(2**30, "Bytes of hardware profiles that a tenant may store.")
    max_stored_jobs: int = setting(
        100_000, "Jobs of a tenant that are kept; beyond, the oldest ended ones go."
    )
    max_result_bytes: int = setting(
        10 * 2**30, "Bytes of answers of a tenant that are kept; beyond, the oldest go."
    )
    max_bytes_per_day: int = setting(
        20 * 2**30, "Bytes of bodies that a tenant may have stored in a day (UTC)."
    )
    rate_per_s: float = setting(
        2000.0,
        "Requests a second of one key, or of one address where no keys are needed; 0: any.",
    )
    rate_burst: int = setting(4000, "Requests that a key may make at once.")
    anonymous_rate_per_s: float = setting(
        50.0, "Requests a second of one address without a key, or with a wrong one; 0: any."
    )
    anonymous_burst: int = setting(200, "Requests that such an address may make at once.")
    trusted_proxies: str = setting(
        "",
        "Addresses and networks of proxies, with commas, whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` are believed; empty: none.",
    )
    cache_bytes: int = setting(
        64 * 2**20, "Memory for results in one service process, everything counted."
    )
    auth_cache_s: float = setting(
        5.0, "How long a revoked key may still be taken; an expired one is not."
    )
    policy_wait_s: float = setting(
        20.0, "How long SkyPilot's policy waits for advice; SkyPilot itself waits 30 s."
    )
    watch_s: float = setting(0.25, "How often watched jobs are checked for events.")
    max_watchers: int = setting(1000, "Event streams that one process serves at once.")
    watchers_share: int = setting(0, "Of those, how many may be one tenant's; 0: half of them.")
    max_polls: int = setting(2000, "Agents that one process lets wait for work at once.")
    polls_share: int = setting(0, "Of those, how many may be one tenant's; 0: half of them.")
    agent_lease_s: float = setting(
        30.0, "After this long without a heartbeat an agent is lost, and its jobs too."
    )
    agent_heartbeat_s: float = setting(5.0, "How often agents are asked to send a heartbeat.")
    claim_s: float = setting(
        60.0, "A launch that not all of its agents claim within this time is put back."
    )
    max_poll_s: float = setting(30.0, "Longest wait for an assignment in one call.")
    max_placements: int = setting(3, "Placements after which a launch that is put back fails.")
    rendezvous_ports: str = setting(
        "29400-29999", "Ports of the first agent where ranks meet, if its inventory names none."
    )
    max_agents: int = setting(1000, "Agents that a tenant may have.")
    max_launches: int = setting(1000, "Launches that a tenant may have queued or running.")
    max_stored_launches: int = setting(10_000, "Launches that a tenant may store, ended ones too.")
    max_launch_bytes: int = setting(
        10 * 2**30, "Bytes of launches (plans, output) at which a tenant may start no more."
    )
    max_runs: int = setting(100_000, "Measured runs that a tenant may store.")
    max_run_bytes: int = setting(2 * 2**30, "Bytes of measured runs that a tenant may store.")
    max_reports: int = setting(256, "Reports of one call.")
    max_report_bytes: int = setting(16 * 2**20, "Largest body of reports or of a heartbeat.")
    max_log_lines: int = setting(20_000, "Lines of output kept of one launch; the oldest go.")
    max_log_bytes: int = setting(16 * 2**20, "Bytes of output kept of one launch; the oldest go.")
    log_s: float = setting(30 * 86400.0, "How long the output of ended launches is kept.")
    report_s: float = setting(30 * 86400.0, "How long the ids of reports are remembered.")
    enrol_rate_per_s: float = setting(10.0, "Enrolments a second from one address; 0: any.")
    idempotency_s: float = setting(86400.0, "How long an Idempotency-Key is remembered.")
    audit_s: float = setting(90 * 86400.0, "How long the audit is kept.")
    job_s: float = setting(
        90 * 86400.0, "How long ended jobs are kept, with their answers; 0: forever."
    )
    result_s: float = setting(
        0.0, "How long answers are kept, with their jobs; 0: as long as `SHARDWISE_JOB_S` says."
    )
    launch_s: float = setting(90 * 86400.0, "How long ended launches are kept; 0: forever.")
    run_s: float = setting(365 * 86400.0, "How long measured runs are kept; 0: forever.")
    profile_s: float = setting(
        365 * 86400.0,
        "How long measured and refitted profiles are kept that have a newer version and that "
        "nothing refers to; 0: forever.",
    )
    database_pool: int = setting(
        10,
        "PostgreSQL connections that one process keeps (at peak, twice as many and 20 more); "
        "also the threads of a service for calls that read, and for those that write.",
    )
    database_s: float = setting(
        10.0,
        "Longest statement of a service, and longest wait of a SQLite writer; a worker has six "
        "times as long.",
    )
    ballast_bytes: int = setting(
        16 * 2**20,
        "Reserved next to a SQLite database, so that deletes work on a full disk; at most an "
        "eighth of the disk. 0: none.",
    )
    webhook_key: str = setting(
        "",
        "Key from which the signing secrets of webhooks are derived: 32 characters or more, equal "
        "on services and workers; with commas: the first for new webhooks, all to sign. Empty: no "
        "webhooks (the embedded mode makes a key in its folder). Use `_FILE`.",
    )
    webhook_allow_networks: str = setting(
        "", "Networks that webhooks may reach though not public, with commas: `10.1.2.0/24`."
    )
    webhook_deny_networks: str = setting(
        "", "Public networks that webhooks never reach, with commas, such as the cluster's own."
    )
    webhook_retry_s: str = setting(
        "10,60,300,1800,7200,21600,43200",
        "Pauses before each further attempt to deliver, give or take a fifth; then it is given up.",
    )
    webhook_timeout_s: float = setting(10.0, "Longest attempt to deliver, name look-up included.")
    webhook_disable_s: float = setting(
        5 * 86400.0, "A webhook whose every attempt failed for this long is disabled."
    )
    webhook_kept_s: float = setting(7 * 86400.0, "How long ended deliveries are listed.")
    webhook_senders: int = setting(32, "Deliveries under way at once in one worker; 0: none.")
    max_webhooks: int = setting(10, "Webhooks that a tenant may have.")
    worker_metrics_port: int = setting(0, "Port of a worker's own metrics; 0: none.")
    worker_metrics_host: str = setting("127.0.0.1", "Address of a worker's own metrics.")

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise BadInput(
                    f"got {getattr(self, name)!r}", field=name, expected=", ".join(sorted(allowed))
                )
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                low = 0 if item.name in _MAY_BE_ZERO else 1e-3
                if not low <= value < float("inf"):
                    raise BadInput(f"got {value}", field=item.name, expected="a number above 0")
        if self.port > 65535:
            raise BadInput(f"got {self.port}", field="port", expected="0 to 65535")
        if self.heartbeat_s * 3 > self.lease_s:
            raise BadInput(
                f"got {self.heartbeat_s}",
                field="heartbeat_s",
                expected="at most a third of lease_s",
            )
        if self.agent_heartbeat_s * 3 > self.agent_lease_s:
            raise BadInput(
                f"got {self.agent_heartbeat_s}",
                field="agent_heartbeat_s",
                expected="at most a third of agent_lease_s",
            )
        self.rendezvous_range()
        if self.graphs_dir and not Path(self.graphs_dir).expanduser().is_dir():
            raise BadInput(self.graphs_dir, field="graphs_dir", expected="a folder of graphs")
        require_login(self)
        trusted_networks(self.trusted_proxies)
        _check_webhooks(self)
        require_database_url(self.database_url)
        require_redis_url(self.redis_url)

    def rendezvous_range(self) -> tuple[int, int]:
        """Returns both ends of `rendezvous_ports`."""
        ends = port_range(self.rendezvous_ports)
        if ends is None:
            raise BadInput(
                f"got {self.rendezvous_ports!r}",
                field="rendezvous_ports",
                expected="two ports from 1024 to 65535, such as 29400-29999",
            )
        return ends

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
    "oidc_client_auth": {"auto", "basic", "post"},
}
_MAY_BE_ZERO = {"port", "concurrency", "solve_threads", "rate_per_s", "worker_metrics_port",
                "cache_bytes", "auth_cache_s", "stop_grace_s", "enrol_rate_per_s", "ingest_slots",
                "ingest_share", "watchers_share", "polls_share", "ballast_bytes", "job_s",
                "result_s", "launch_s", "run_s", "profile_s", "anonymous_rate_per_s",
                "short_job_s", "max_running", "count_time_s", "max_webhooks",
                "webhook_senders"}  # fmt: skip


def port_range(text: str) -> tuple[int, int] | None:
    """Returns the two ends of `29400-29999`, or None if it is not a range of unprivileged ports."""
    match = re.fullmatch(r"(\d{4,5})-(\d{4,5})", text.strip())
    if match is None:
        return None
    low, high = int(match[1]), int(match[2])
    return (low, high) if 1024 <= low <= high <= 65535 else None


def pauses(text: str) -> tuple[float, ...] | None:
    """Returns `10,60,300` as seconds, or None if it is not a list of 1 to 20 numbers."""
    parts = text.split(",")
    if not 1 <= len(parts) <= 20 or not all(_PAUSE.fullmatch(part.strip()) for part in parts):
        return None
    return tuple(float(part) for part in parts)


def _check_webhooks(settings: Settings) -> None:
    # The value is a secret: the error says where it is, not what it is.
    if any(0 < len(key.strip()) < MIN_WEBHOOK_KEY for key in settings.webhook_key.split(",")):
        raise BadInput(
            "too short", field="webhook_key", expected=f"{MIN_WEBHOOK_KEY} characters or more"
        )
    for name in ("webhook_allow_networks", "webhook_deny_networks"):
        try:
            read_networks(getattr(settings, name))
        except ValueError as error:
            raise BadInput(f"{error}"[:200], field=name, expected="10.1.2.0/24, …") from None
    if pauses(settings.webhook_retry_s) is None:
        raise BadInput(
            f"got {settings.webhook_retry_s[:80]!r}",
            field="webhook_retry_s",
            expected="1 to 20 numbers of seconds with commas, such as 10,60,300",
        )


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Returns whether an address or name is loopback's.

    Cached, since every request of a caller without a key names a host.
    """
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
    """Returns the settings in force.

    Raises `BadInput` with the flag, the variable or the file's field.
    """
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
    """Returns the variable's text, or the content of the file that `variable`_FILE names.

    Empty if neither is set.
    """
    text, path = environment.get(variable, ""), environment.get(variable + FROM_FILE, "")
    if not path:
        return text
    if text:
        raise BadInput("is set twice", field=variable, expected=f"it or {variable}{FROM_FILE}")
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise BadInput(
            reason.lower(),
            file=path,
            field=variable + FROM_FILE,
            expected="a file that the service can read",
        ) from None


def _from_file(path: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(reason, file=path, expected="a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"not TOML: {error}", file=path, expected="TOML") from None
    known = {item.name for item in fields(Settings)}
    for name in document:
        if name not in known:
            raise BadInput(
                "unknown setting", file=path, field=name, expected="see docs/reference/settings.md"
            )
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
            return parse_size(value, where) if name.endswith("_bytes") else int(str(value))
        return float(value)
    except (TypeError, ValueError):
        kind = {str: "text", int: "a whole number", float: "a number"}[type(default)]
        raise BadInput(f"got {value!r}", field=where, expected=kind) from None


def environment_of(settings: Settings) -> dict[str, str]:
    """Returns the variables that give another process the same settings."""
    return {
        PREFIX + item.name.upper(): str(getattr(settings, item.name))
        for item in fields(Settings)
        if getattr(settings, item.name) != item.default
    }


def environment_of_child(environment: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Returns an environment that gives a child process the same settings.

    Files that this process took values from are left out: a setting is not given twice.
    """
    files = {PREFIX + item.name.upper() + FROM_FILE for item in fields(Settings)}
    files |= {name + FROM_FILE for name in FALLBACKS.values()}
    files -= {PREFIX + item.name.upper() for item in fields(Settings)}
    kept = {name: value for name, value in environment.items() if name not in files}
    return {**kept, **environment_of(settings)}
