"""Other systems' strategies on our cost model (`shardwise compare`, TensorOpt §5.1)."""

from shardwise.peers.comparison import compare
from shardwise.peers.data_parallel import data_parallel, data_parallel_over_mini_time
from shardwise.peers.evaluate import Breakdown, Point, evaluate

__all__ = [
    "Breakdown",
    "Point",
    "compare",
    "data_parallel",
    "data_parallel_over_mini_time",
    "evaluate",
]
