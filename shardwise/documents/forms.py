"""The two forms in which a plan is written, and the only places that ask which one it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from shardwise.documents.common import schema_of
from shardwise.documents.pipeline import Pipeline
from shardwise.documents.plan import Plan
from shardwise.documents.whole_plan import WholePlan
from shardwise.errors import InternalError

R = TypeVar("R")


def by_form(plan: Plan, whole: Callable[[WholePlan], R], staged: Callable[[Pipeline], R]) -> R:
    """Returns what the function for a plan's form makes of it: forms have figures of their own."""
    if isinstance(plan, WholePlan):
        return whole(plan)
    if isinstance(plan, Pipeline):
        return staged(plan)
    raise InternalError(f"a plan of the form {type(plan).__name__}")


def written_form(document: object) -> type[Plan]:
    """Returns in which form decoded JSON of version 1 is; `WholePlan` if it is no plan."""
    piped = isinstance(document, Mapping) and document.get("schema") == schema_of(Pipeline)
    return Pipeline if piped else WholePlan
