"""Translation rules by ONNX operator type, one file per family."""

from __future__ import annotations

from shardwise.capture.onnx.program import OWN_DOMAIN, Node
from shardwise.capture.onnx.rules import (
    elementwise,
    lookup,
    movement,
    normalisation,
    products,
    recurrent,
    reductions,
    windows,
)
from shardwise.capture.onnx.rules.rule import Rule

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **lookup.RULES,
    **movement.RULES,
    **normalisation.RULES,
    **products.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **windows.RULES,
}
"""Rules of ONNX's own operators."""

FUSED: dict[str, Rule] = {**elementwise.FUSED, **products.FUSED, **recurrent.FUSED}
"""Rules of the nodes that fusion makes."""


def rule_of(node: Node) -> Rule | None:
    """Returns the rule of a node, or None."""
    if node.domain == OWN_DOMAIN:
        return FUSED[node.type]
    return RULES.get(node.type) if node.is_standard else None


def table() -> list[dict[str, str]]:
    """Returns one row per translated operator: `onnx`, and what its rule turns it into, `aten`."""
    return [{"onnx": name, "aten": rule.becomes} for name, rule in sorted(RULES.items())]
