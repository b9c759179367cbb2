"""Advice: the frontier, the curve, plans, quotes, and why."""

from shardwise.answers.allocation import (
    ALLOCATION_OBJECTIVES,
    AllocationJob,
    allocate,
    job_from_curve,
)
from shardwise.answers.curve import curve
from shardwise.answers.explain import explain
from shardwise.answers.frontier import frontier
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.answers.plan import plan, read_plan
from shardwise.answers.quote import quote
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
