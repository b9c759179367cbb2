"""Every limit with its scope: what one caller can take from others, and what it cannot.

The tables of docs/security.md are made of this. A test compares both with the settings: a new
number among them is a limit here, or in `NO_LIMITS`.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.base.fair_pool import KEPT
from service.base.pools import KEPT_PLACES
from service.base.settings import Settings


@dataclass(frozen=True)
class Shared:
    """Resources that the tenants of one process share.

    `own` is the most that one tenant has (one address, where the caller is not known yet),
    `operators` what is left for operators, `beyond` what happens to those who want more.
    """

    what: str
    settings: tuple[str, ...]
    own: str
    operators: str
    beyond: str


_THREADS = f"{KEPT} more"
_PLACES = f"{KEPT_PLACES} more"
_WAITS = "waits its turn; 429 beyond `calls_waiting` that wait"

SHARED = (
    Shared("calls that read", ("database_pool",), "half", _THREADS, _WAITS),
    Shared("calls that write", ("database_pool",), "half", _THREADS, _WAITS),
    Shared("processor time of calls, refused ones too", (),
           "a quarter of a core while others ask", "as a tenant", "pauses"),
    Shared("calls that wait for a thread", ("calls_waiting",), "all: each tenant has its own",
           "their own", "429"),
    Shared("event streams, and tools that wait for a job", ("max_watchers", "watchers_share"),
           "half", _PLACES, "429"),
    Shared("agents that wait for work", ("max_polls", "polls_share"), "half", _PLACES, "429"),
    Shared("archives being written", ("max_exports", "exports_share"), "`exports_share`", _PLACES,
           "429"),
    Shared("threads that make archives' pieces", (), "1 of 2", _THREADS, "waits its turn"),
    Shared("uploads being read", ("ingest_slots", "ingest_share"), "half", _THREADS, _WAITS),
    Shared("uploads in work", ("uploads_at_once",), "all: each tenant has its own", "their own",
           "429"),
    Shared("bytes of bodies", ("bodies_bytes",), "a quarter", "a quarter more",
           "429; bodies up to 1 MiB only for the tenant's own share"),
    Shared("threads that decompress, and those that render pages and tools' answers", (), "half",
           _THREADS, _WAITS),
    Shared("threads that ring the broker", (), "4 of 8", _THREADS, _WAITS),
    Shared("threads that look up keys and sessions", (),
           "2 of 4 by address; a key that was in force: its tenant's", _THREADS, _WAITS),
    Shared("threads that enrol agents, and those of sign-ins", (), "1 of 2, by address",
           _THREADS, _WAITS),
    Shared("requests to the identity provider (16)", (), "all, as nobody is known yet",
           "none: a key needs no provider", "503 for seconds; who is signed in notices nothing"),
    Shared("connections", ("max_connections", "max_connections_per_address"),
           "`max_connections_per_address`, by address", "none: the key is not known yet",
           "the longest idle one is closed; 503"),
    Shared("answers in memory", ("cache_bytes",), "a quarter while others have any", "as a tenant",
           "its own go, the longest unused first, and are read from the database"),
    Shared("requests a second", ("rate_per_s", "rate_burst"), "by key, over all processes",
           "by key", "429"),
    Shared("requests a second without a key", ("anonymous_rate_per_s", "anonymous_burst"),
           "by address, over all processes", "by address", "429"),
    Shared("enrolments a second", ("enrol_rate_per_s",), "by address, over all processes",
           "by address", "429"),
    Shared("solves of a worker", ("concurrency", "max_running", "short_job_s"),
           "`max_running`, over all workers; one slot of each worker is for short jobs",
           "as a tenant", "waits its turn, by seconds of solving"),
    Shared("deliveries of a worker", ("webhook_senders",), "a quarter", "as a tenant",
           "waits; slow receivers share half"),
)  # fmt: skip
"""Limits of a process, in which tenants meet."""

OWN: dict[str, tuple[str, ...]] = {
    "a tenant, in the database": (
        "max_keys", "max_queued", "max_running", "max_graphs", "max_stored_bytes", "max_profiles",
        "max_profile_bytes", "max_stored_jobs", "max_result_bytes", "max_bytes_per_day",
        "max_watched", "max_webhooks", "max_agents", "max_launches", "max_stored_launches",
        "max_launch_bytes", "max_runs", "max_run_bytes",
    ),
    "a connection": ("max_head_bytes", "head_s", "body_silence_s"),
    "a call": (
        "max_body_bytes", "max_gzip_ratio", "max_json_depth", "max_operators", "max_gpus",
        "max_curve_gpus", "max_reports", "max_report_bytes", "max_poll_s", "policy_wait_s",
        "database_s", "ingest_time_s", "ingest_memory_bytes",
    ),
    "a job": (
        "solve_time_s", "count_time_s", "solve_memory_bytes", "solve_threads", "max_attempts",
    ),
    "a launch": ("max_placements", "claim_s", "max_log_lines", "max_log_bytes"),
    "a webhook": ("webhook_timeout_s", "webhook_disable_s"),
}  # fmt: skip
"""Limits that are not shared, by their scope."""

NO_LIMITS = {
    "port", "worker_metrics_port", "session_s", "lease_s", "heartbeat_s", "sweep_s", "ring_again_s",
    "stop_grace_s", "auth_cache_s", "watch_s", "agent_lease_s", "agent_heartbeat_s", "log_s",
    "report_s", "idempotency_s", "audit_s", "job_s", "result_s", "launch_s", "run_s", "profile_s",
    "ballast_bytes", "webhook_kept_s",
}  # fmt: skip
"""Numbers among the settings that bound nothing a caller could want: paces, leases, retention."""


def documentation() -> str:
    """Returns the tables of docs/security.md."""
    lines = ["| in one process | setting | one tenant at most | operators | beyond it |",
             "|---|---|---|---|---|"]  # fmt: skip
    for limit in SHARED:
        names = ", ".join(map(_shown, limit.settings)) or "-"
        cells = (limit.what, names, limit.own, limit.operators, limit.beyond)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| holds for | settings |", "|---|---|"]
    for scope, settings in OWN.items():
        lines.append(f"| {scope} | {', '.join(map(_shown, settings))} |")
    return "\n".join(lines) + "\n"


def _shown(name: str) -> str:
    """Returns a setting with its default."""
    default = getattr(Settings(), name)
    if "_bytes" in name:
        return f"`{name}` ({_sized(default)})"
    unit = " s" if name.endswith("_s") and not name.endswith("per_s") else ""
    return f"`{name}` ({default:,g}{unit})" if default < 1e6 else f"`{name}` ({default:,}{unit})"


def _sized(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and not size % unit:
            return f"{size // unit} {name}"
    return f"{size} bytes"
