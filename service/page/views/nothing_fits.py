"""Suggestions if nothing fits: the same question with fewer restrictions, or with more GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.page.views.job_rows import form_values
from shardwise.cost.options import NEVER, ZERO_STAGES

MOST_GPUS_TIMES = 2
"""The curve that says how many GPUs are enough goes up to this many times those asked for."""


@dataclass(frozen=True)
class Attempt:
    """A question to ask instead: the words of its button, and the fields of the form."""

    name: str
    fields: Mapping[str, Any]


def attempts(job: dict[str, Any]) -> list[Attempt]:
    """Returns suggestions for a question that nothing fits, best first.

    A quote's own offers are a file that the form cannot fill in again, so a quote has none.
    """
    if job["kind"] not in ("frontier", "curve", "plan"):
        return []
    values = form_values(job)
    freer = _freer(job, values)
    first = [Attempt(f"Try with {freer[0]}", freer[1])] if freer else []
    gpus = job["question"].get("gpus")
    if isinstance(gpus, int) and "nodes" not in values:
        most = MOST_GPUS_TIMES * gpus
        fields = {**(freer[1] if freer else values), "kind": "curve", "gpus": most}
        first.append(Attempt(f"Try every number up to {most} GPUs", fields))
    return first


def _freer(job: dict[str, Any], values: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Returns the question's restrictions in words, and its fields without them; None without any.

    By sums, recomputation and micro-batches are off unless named: the replayed time has both.
    """
    options = job["question"].get("options", {})
    sums = options.get("overlap") is False
    fields, words = dict(values), []
    recompute = options.get("recompute")
    if recompute == NEVER or (sums and recompute is None):
        words.append("recomputation")
        fields.pop("recompute", None)
    if options.get("micro_batches") or sums:
        words.append("micro-batches")
        fields.pop("micro_batches", None)
    if set(options.get("zero", ZERO_STAGES)) != set(ZERO_STAGES):
        words.append("all ZeRO stages")
        fields["zero"] = ",".join(map(str, ZERO_STAGES))
    if not words:
        return None
    if sums:
        fields.pop("overlap", None)
    return f"{', '.join(words[:-1])} and {words[-1]}" if words[1:] else words[0], fields
