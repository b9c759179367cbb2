"""Checkpoints that outlive a plan: saved under one, loaded under another or on one device."""

from shardwise.execute.checkpoint.checkpoint import load, save

__all__ = ["load", "save"]
