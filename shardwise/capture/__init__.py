"""Capture: PyTorch models into training graphs. torch is imported only when it is used."""

from shardwise.capture.capture import capture
from shardwise.capture.shipped import shipped_graph, shipped_names
from shardwise.capture.zoo import zoo_names, zoo_options

__all__ = ["capture", "shipped_graph", "shipped_names", "zoo_names", "zoo_options"]
