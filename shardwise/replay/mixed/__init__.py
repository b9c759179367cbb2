"""Replay on devices of several kinds: every place has its own resources and memory."""
