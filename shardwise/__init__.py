"""Shardwise: advice on parallelism for training neural networks.

It takes a training graph and the hardware it would run on, tracks the cost frontier
(peak memory against iteration time), and answers how fast, how few GPUs, and at what price.
"""

from typing import TYPE_CHECKING, Any

from shardwise.errors import BadInput, CaptureError, ShardwiseError

if TYPE_CHECKING:
    from shardwise.client import AsyncClient as AsyncClient
    from shardwise.client import Client as Client
    from shardwise.execute.master_weights import MasterWeights as MasterWeights
    from shardwise.execute.parallel import parallelize as parallelize

__version__ = "0.1.0"

__all__ = ["BadInput", "CaptureError", "ShardwiseError", "__version__"]


def __getattr__(name: str) -> Any:
    # The clients need httpx, the others torch, which the base install has not.
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
