"""Short forms for examples of ATen operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardwise.tdl.example import Example

Given = tuple[str, Example]
EXAMPLES: dict[str, tuple[Example, ...]] = {}
"""By kind, once `shardwise.tdl.examples` is imported."""

Shapes = dict[str, tuple[int, ...]]


def case(
    kind: str,
    shapes: Shapes,
    integers: dict[str, int] | None = None,
    positive: bool = False,
    *,
    complexes: Iterable[str] = (),
    truths: Iterable[str] = (),
    given: dict[str, Any] | None = None,
    compute: str = "float64",
    tolerance: float = 1e-8,
    needs: str = "",
    whole: str = "int64",
    **attributes: Any,
) -> Given:
    """Returns one call; all other keywords are attributes."""
    return f"aten.{kind}", Example(
        dict(shapes),
        attributes,
        integers or {},
        positive,
        frozenset(complexes),
        frozenset(truths),
        given or {},
        compute,
        tolerance,
        needs,
        whole,
    )


def one(kind: str, *shape: int, **more: Any) -> Given:
    """Returns a call with the one tensor `self`."""
    return case(kind, {"self": shape}, **more)


def two(kind: str, a: tuple[int, ...], b: tuple[int, ...], **more: Any) -> Given:
    """Returns a call with `self` and `other`."""
    return case(kind, {"self": a, "other": b}, **more)


def give(*examples: Given) -> None:
    """Adds each to the examples of its kind."""
    for kind, example in examples:
        EXAMPLES[kind] = (*EXAMPLES.get(kind, ()), example)
