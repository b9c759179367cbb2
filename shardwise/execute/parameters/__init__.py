"""A plan's parameters on a rank: stored, used and trained as the plan prices them."""

from shardwise.execute.parameters.norm import clip_grad_norm_
from shardwise.execute.parameters.spec import ParameterSpec
from shardwise.execute.parameters.store import ParameterStore

__all__ = ["ParameterSpec", "ParameterStore", "clip_grad_norm_"]
