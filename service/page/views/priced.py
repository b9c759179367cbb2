"""A priced configuration: its strategy in words, the best one, and the changes."""

from __future__ import annotations

from typing import Any

from shardwise import documents
from shardwise.documents import Pricing
from shardwise.documents.parallelism import text_of
from shardwise.texts import verdict


def pricing_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the strategies in words, and the plan, which is a part of the answer."""
    pricing = documents.read(result, Pricing)
    best = pricing.best
    return {
        "plan": result["plan"],
        "given": text_of(pricing.parallelism),
        "stated": pricing.stated or [],
        "left_out": pricing.left_out or [],
        "verdict": verdict(pricing.fits, pricing.left_out or []),
        "best": None if best is None else {**result["best"], "name": text_of(best.parallelism)},
    }
