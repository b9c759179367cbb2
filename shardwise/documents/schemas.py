"""JSON Schemas of the documents, and the check of a document against its type."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any, TypeVar, cast

import msgspec

from shardwise import validation
from shardwise.documents.common import schema_of
from shardwise.documents.comparison import Comparison
from shardwise.documents.curve import Curve
from shardwise.documents.explanation import PipelineExplanation, WholeExplanation
from shardwise.documents.export import Export
from shardwise.documents.folded import FOLDED_SCHEMA, unfolded
from shardwise.documents.forms import written_form
from shardwise.documents.frontier import Frontier
from shardwise.documents.infeasible import Infeasible
from shardwise.documents.pipeline import Pipeline, check_stages
from shardwise.documents.pipeline_pricing import PipelinePricing
from shardwise.documents.plan import Plan
from shardwise.documents.pricing import Pricing
from shardwise.documents.quote import Quote
from shardwise.documents.service import SERVICE_DOCUMENTS
from shardwise.documents.whole_plan import WholePlan
from shardwise.errors import BadInput

DOCUMENTS: Mapping[str, type[msgspec.Struct]] = {
    "compare": Comparison,
    "curve": Curve,
    "explanation": WholeExplanation,
    "export": Export,
    "frontier": Frontier,
    "infeasible": Infeasible,
    "pipeline": Pipeline,
    "pipeline-explanation": PipelineExplanation,
    "pipeline-pricing": PipelinePricing,
    "plan": WholePlan,
    "pricing": Pricing,
    "quote": Quote,
}
"""By the word in the `schema` member: `plan` for `shardwise.plan/1`."""

D = TypeVar("D", bound=msgspec.Struct)
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: str) -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a kind of document.

    Raises `BadInput` for a kind that is in neither `DOCUMENTS` nor `SERVICE_DOCUMENTS`.
    """
    known = {**DOCUMENTS, **SERVICE_DOCUMENTS}
    if kind not in known:
        raise BadInput(f"unknown document {kind[:80]!r}", expected=", ".join(sorted(known)))
    schema = without_indentation(msgspec.json.schema(known[kind]))
    return {"$schema": DIALECT, "$id": f"urn:shardwise:schema:{kind}:1", **schema}


def without_indentation(schema: Any) -> Any:
    """Returns a schema with its descriptions, which are docstrings, freed of indentation."""
    if isinstance(schema, dict):
        return {
            name: cleandoc(value)
            if name == "description" and isinstance(value, str)
            else without_indentation(value)
            for name, value in schema.items()
        }
    return [without_indentation(item) for item in schema] if isinstance(schema, list) else schema


def read(document: Any, kind: type[D], *, file: str | None = None) -> D:
    """Returns a document (JSON's objects, lists and values) as its type, unfolded; a `Plan` in the
    form in which it is written.

    Raises `BadInput` that names file and field if it is not such a document, or a plan whose stages
    do not go together (`check_stages`).
    """
    whole = unfolded(document, file)
    form: type[msgspec.Struct] = written_form(whole) if kind is Plan else kind
    wanted = schema_of(form)
    if not isinstance(whole, Mapping):
        raise BadInput("not an object", file=file, expected=wanted)
    if whole.get("schema") != wanted:
        given = str(whole.get("schema"))[:80]
        expected = f"{wanted} or {FOLDED_SCHEMA}" if issubclass(form, Plan) else wanted
        raise BadInput(f"unknown schema {given!r}", file=file, field="schema", expected=expected)
    typed = validation.convert(whole, form, file=file)
    if isinstance(typed, Plan):
        check_stages(typed, file)
    return cast(D, typed)
