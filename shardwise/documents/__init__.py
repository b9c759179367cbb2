"""The documents that the library returns, one type each, and their JSON Schemas.

A document is JSON with a `schema` member such as `shardwise.plan/1`. Its type here is its only
description: `json_schema` returns the published form, `read` checks a document against it.
Members that a later release adds are allowed when a document is read.
"""

from shardwise.documents.common import schema_of
from shardwise.documents.comparison import Comparison
from shardwise.documents.curve import Curve, CurvePoint
from shardwise.documents.explanation import (
    Explanation,
    PipelineExplanation,
    WholeExplanation,
)
from shardwise.documents.export import Export
from shardwise.documents.folded import FOLDED_SCHEMA, PLAN_SCHEMAS, folded, unfolded
from shardwise.documents.forms import by_form
from shardwise.documents.frontier import Frontier, FrontierPoint
from shardwise.documents.infeasible import Infeasible
from shardwise.documents.launch_request import LAUNCH_SCHEMA, LaunchRequest
from shardwise.documents.pipeline import Pipeline
from shardwise.documents.pipeline_pricing import PipelinePricing
from shardwise.documents.plan import Plan
from shardwise.documents.pricing import Pricing
from shardwise.documents.questions import (
    QUESTIONS,
    BundleText,
    CompareRequest,
    CurveRequest,
    CurvesRequest,
    FrontierRequest,
    Gpus,
    PlanRequest,
    PricingRequest,
    QuoteRequest,
    request_body,
)
from shardwise.documents.quote import Quote
from shardwise.documents.schemas import DOCUMENTS, json_schema, read
from shardwise.documents.whole_plan import WholePlan

__all__ = [
    "DOCUMENTS",
    "FOLDED_SCHEMA",
    "LAUNCH_SCHEMA",
    "PLAN_SCHEMAS",
    "QUESTIONS",
    "BundleText",
    "CompareRequest",
    "Comparison",
    "Curve",
    "CurvePoint",
    "CurveRequest",
    "CurvesRequest",
    "Explanation",
    "Export",
    "Frontier",
    "FrontierPoint",
    "FrontierRequest",
    "Gpus",
    "Infeasible",
    "LaunchRequest",
    "Pipeline",
    "PipelineExplanation",
    "PipelinePricing",
    "Plan",
    "PlanRequest",
    "Pricing",
    "PricingRequest",
    "Quote",
    "QuoteRequest",
    "WholeExplanation",
    "WholePlan",
    "by_form",
    "folded",
    "json_schema",
    "read",
    "request_body",
    "schema_of",
    "unfolded",
]
