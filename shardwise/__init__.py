"""Shardwise: advice on parallelism for training neural networks.

It takes a training graph and the hardware it would run on, tracks the cost frontier
(peak memory against iteration time), and answers how fast, how few GPUs, and at what price.
"""

from shardwise.errors import BadInput, CaptureError, ShardwiseError

__version__ = "0.1.0"

__all__ = ["BadInput", "CaptureError", "ShardwiseError", "__version__"]
