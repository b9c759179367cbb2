"""The command `worker`, which `shardwise` finds by entry point."""

from __future__ import annotations

from typing import Any

import click

from service.host.command_options import setting_option, settings_from, settings_options
from shardwise.errors import BadInput
from worker.app import run_worker


@click.command()
@setting_option("concurrency", type=click.IntRange(0))
@settings_options
def worker(**flags: Any) -> None:
    """Compute what the service is asked; as many as you like, on any hosts."""
    settings = settings_from(**flags)
    if not settings.redis_url:
        raise BadInput(
            "a worker needs the service's Redis",
            field="redis_url",
            expected="--redis-url or SHARDWISE_REDIS_URL (`serve` without one has its own worker)",
        )
    raise click.exceptions.Exit(run_worker(settings))
