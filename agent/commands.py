"""The command `agent`, which `shardwise` finds by entry point."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import sys

import click

from agent.allow import BUILT_IN
from agent.config import load_config
from agent.daemon import run_agent
from agent.datadir import DataDir
from agent.identity import enrol, handed_over, hide_token, read_token, stored_identity
from agent.inventory import inventory
from agent.job import Host
from agent.names import safe_name
from agent.scope import parent_folder
from agent.spool import Spool
from shardwise.errors import BadInput
from shardwise.logs import set_up_logs

log = logging.getLogger(__name__)


@click.command()
@click.option(
    "--server", envvar="SHARDWISE_SERVER", required=True, show_envvar=True,
    help="The service's URL; one data directory belongs to one service.",
)  # fmt: skip
@click.option(
    "--data-dir", envvar="SHARDWISE_AGENT_DATA_DIR", required=True, show_envvar=True,
    help="Its own folder, locked while it runs.",
)  # fmt: skip
@click.option(
    "--config", "config_file", envvar="SHARDWISE_AGENT_CONFIG", show_envvar=True,
    help="agent.toml; without it only the built-in programs may be run.",
)  # fmt: skip
@click.option("--name", help="What it is called; the host's name otherwise.")
@click.option(
    "--token-file",
    help="Holds the token to enrol with, for the first start only; else SHARDWISE_ENROL_TOKEN.",
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
    show_default=True, help="The least that is logged.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
    help="auto: text on a terminal, else json.",
)  # fmt: skip
def agent(
    server: str,
    data_dir: str,
    config_file: str | None,
    name: str | None,
    token_file: str | None,
    log_level: str,
    log_format: str,
) -> None:
    """Lend this host to the service: measure, launch, report (docs/agents.md)."""
    if sys.platform != "linux":
        raise BadInput("an agent needs Linux", field="agent", expected="a Linux host")
    hide_token()
    given = handed_over(os.environ)
    set_up_logs(log_level, log_format, quiet=("httpx", "httpcore"))
    faulthandler.enable()
    config = load_config(config_file)
    if not server.startswith(("http://", "https://")):
        raise BadInput(f"got {server!r}", field="server", expected="http://… or https://…")
    called = safe_name(name or socket.gethostname(), "name")
    with DataDir(data_dir) as data:
        path = data.path / "identity.json"
        identity = stored_identity(path)
        if identity is None:
            token = read_token(token_file, given)
            identity = enrol(path, server, token, called, inventory(config, set()))
        elif identity.server != server:
            raise BadInput(
                f"this data directory belongs to {identity.server}",
                field="server",
                expected="that one, or another --data-dir and a token",
            )
        spool = Spool(data.spool, config.spool_bytes)
        host = Host(identity.id, config, data, spool, parent_folder(config.cgroup))
        for entry in (*BUILT_IN.values(), *config.entry_points.values()):
            log.info("launches may start %s with %s", entry.name, entry.arguments_allowed)
        status = run_agent(identity, host)
    raise click.exceptions.Exit(status)
