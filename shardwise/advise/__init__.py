"""Advice: the frontier, the curve, plans, quotes, and why."""

from shardwise.advise.allocation import (
    ALLOCATION_OBJECTIVES,
    AllocationJob,
    allocate,
    job_from_curve,
)
from shardwise.advise.curve import curve
from shardwise.advise.explain import explain
from shardwise.advise.frontier import frontier
from shardwise.advise.pipelines import pipeline_or_plan
from shardwise.advise.plan import plan, read_plan
from shardwise.advise.quote import quote
from shardwise.cost.options import Options
from shardwise.pipeline.asked import OBJECTIVES
from shardwise.search.search import Infeasible
from shardwise.search.turning_point import turning_point

__all__ = [
    "ALLOCATION_OBJECTIVES",
    "OBJECTIVES",
    "AllocationJob",
    "Infeasible",
    "Options",
    "allocate",
    "curve",
    "explain",
    "frontier",
    "job_from_curve",
    "pipeline_or_plan",
    "plan",
    "quote",
    "read_plan",
    "turning_point",
]
