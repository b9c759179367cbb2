"""Costs on devices of several kinds: vectors over kinds instead of one number (docs/mixed.md)."""
