"""Sia: AdaptDL's table for every GPU type, by its name.

A document of one curve has one type; those of several merge by merging their objects.
`shardwise.schedulers.goodput.goodputs_of` makes the functions for Sia's jobs.
"""

from __future__ import annotations

from typing import Any

from shardwise.schedulers.adaptdl import adaptdl
from shardwise.schedulers.counts import Counts


def sia(counts: Counts) -> dict[str, Any]:
    """Returns `shardwise.goodput/1` by GPU type."""
    return {counts.gpu_type.lower(): adaptdl(counts)}
