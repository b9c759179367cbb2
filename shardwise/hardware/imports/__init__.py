"""Measurements of other programs as tables of a profile: nccl-tests, linear models of links."""

from shardwise.hardware.imports.imported import FORMATS, import_measurements

__all__ = ["FORMATS", "import_measurements"]
