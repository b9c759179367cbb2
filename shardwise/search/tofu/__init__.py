"""Tofu's recursive search (Tofu §5.2), a peer to compare with: method `tofu`."""

from shardwise.search.tofu.recursion import TofuSolution, tofu

__all__ = ["TofuSolution", "tofu"]
