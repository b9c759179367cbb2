"""Which form runs a kind of operator on shares."""

from __future__ import annotations

from collections.abc import Callable

from shardwise.execute.local.calling import Run
from shardwise.execute.local.share import Share

Form = Callable[[Share], Run]
"""Builds the local operator of a share; raises NotLocal if it has no exact form."""

FORMS: dict[str, Form] = {}


def form(*kinds: str) -> Callable[[Form], Form]:
    """Registers the form of these kinds (`linear.default` for `aten.linear.default`)."""

    def register(function: Form) -> Form:
        for kind in kinds:
            FORMS[kind if kind.count(".") > 1 else f"aten.{kind}"] = function
        return function

    return register
