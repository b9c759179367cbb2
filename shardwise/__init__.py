"""Shardwise: advice on parallelism for training neural networks.

It takes a training graph and the hardware it would run on, tracks the cost frontier
(peak memory against iteration time), and answers how fast, how few GPUs, and at what price.
"""

from __future__ import annotations

from shardwise.errors import BadInput, CaptureError, ShardwiseError

# As in `typing`, which takes longer to import than an agent's rank entry otherwise runs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from shardwise.capture.capture import capture as capture
    from shardwise.client import AsyncClient as AsyncClient
    from shardwise.client import Client as Client
    from shardwise.execute.master_weights import MasterWeights as MasterWeights
    from shardwise.execute.parallelize import parallelize as parallelize
    from shardwise.execute.report import report as report
    from shardwise.notebook import compare as compare
    from shardwise.notebook import curve as curve
    from shardwise.notebook import explain as explain
    from shardwise.notebook import frontier as frontier
    from shardwise.notebook import plan as plan
    from shardwise.notebook import quote as quote

__version__ = "0.2.0"

__all__ = ["BadInput", "CaptureError", "ShardwiseError", "__version__"]

_LATE = {
    **dict.fromkeys(
        ("compare", "curve", "explain", "frontier", "plan", "quote"), "shardwise.notebook"
    ),
    **dict.fromkeys(("AsyncClient", "Client"), "shardwise.client"),
    "MasterWeights": "shardwise.execute.master_weights",
    "parallelize": "shardwise.execute.parallelize",
    "report": "shardwise.execute.report",
}
"""The modules of names that are imported late, so that importing the package is cheap: the clients
need httpx, those of `execute` torch."""


def __dir__() -> list[str]:
    """Returns the public names, those that are imported late among them."""
    return sorted({*__all__, *_LATE, "capture"})


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "capture":  # a package that can be called
        return import_module("shardwise.capture")
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
