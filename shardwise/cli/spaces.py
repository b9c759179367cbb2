"""The option of commands that search a trainer's strategies."""

from __future__ import annotations

import click

from shardwise.pipeline.asked import ANY
from shardwise.trainers.spaces import SPACES

space_option = click.option(
    "--space",
    type=click.Choice((ANY, *SPACES)),
    default=ANY,
    show_default=True,
    help="Of which strategies: of any kind, or those that a trainer can run (docs/trainers.md).",
)
