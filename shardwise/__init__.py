"""Shardwise: advice on parallelism for training neural networks.

It takes a training graph and the hardware it would run on, tracks the cost frontier
(peak memory against iteration time), and answers how fast, how few GPUs, and at what price.
"""

from __future__ import annotations

from shardwise.errors import BadInput, CaptureError, ShardwiseError

# As in `typing`, which takes longer to import than an agent's rank entry otherwise runs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from shardwise.answers import curve as curve
    from shardwise.answers import explain as explain
    from shardwise.answers import frontier as frontier
    from shardwise.answers import plan as plan
    from shardwise.answers import quote as quote
    from shardwise.capture.capture import capture as capture
    from shardwise.client import AsyncClient as AsyncClient
    from shardwise.client import Client as Client
    from shardwise.execute.master_weights import MasterWeights as MasterWeights
    from shardwise.execute.parallel import parallelize as parallelize

__version__ = "0.2.0"

__all__ = ["BadInput", "CaptureError", "ShardwiseError", "__version__"]


def __getattr__(name: str) -> object:
    # Late, so that importing the package is cheap; the clients need httpx, the last two torch.
    if name in ("curve", "explain", "frontier", "plan", "quote"):
        from shardwise import answers

        return getattr(answers, name)
    if name == "capture":
        import shardwise.capture

        return shardwise.capture
    if name in ("AsyncClient", "Client"):
        from shardwise import client

        return getattr(client, name)
    if name == "parallelize":
        from shardwise.execute.parallel import parallelize

        return parallelize
    if name == "MasterWeights":
        from shardwise.execute.master_weights import MasterWeights

        return MasterWeights
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
