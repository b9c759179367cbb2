"""Launch scripts: which commands a shell script would run, found without running it."""

from __future__ import annotations

from shardwise.trainers.shell.evaluator import Commands, commands_of
from shardwise.trainers.shell.values import Unknown, known

__all__ = ["Commands", "Unknown", "commands_of", "known"]
