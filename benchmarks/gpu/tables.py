"""Operator tables of some models, and what they change of the predictions."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from shardwise.answers import plan
from shardwise.documents import Plan
from shardwise.hardware import hardware_document, hardware_from_document
from shardwise.measure.operators import Effort, add_operators
from shardwise.measure.operators.profile import default_effort
from shardwise.measure.real_module import SizedSource

from .parts import Work
from .setting import Setting

MEMORY_SHARE = 0.25
SHOWN = 8


def measure(setting: Setting, work: Work) -> None:
    """Tells for each model what was measured, and the profile with all tables so far (`tables`)."""
    document = hardware_document(setting.hardware)
    for number, model in enumerate(setting.tabled):
        if work.left_s <= 0:
            work.tell("left out", f"operators of {model.name}: no time left")
            continue
        work.tell("doing", f"measuring the operators of {model.name}")
        share_s = work.left_s / (len(setting.tabled) - number)
        document = _add(document, model, min(share_s, setting.tables_s), setting, work)


def _add(
    document: dict[str, Any], model: SizedSource, limit_s: float, setting: Setting, work: Work
) -> dict[str, Any]:
    graph, options = model.captured(setting.dtype), setting.options("eager")
    on_cpu = not setting.on_gpu
    effort = Effort(
        setting.device,
        threads=int(on_cpu),
        own_time=on_cpu,
        time_limit_s=limit_s,
        memory_limit_bytes=setting.hardware.devices[0].memory_bytes * MEMORY_SHARE,
        flushed=default_effort(graph, setting.hardware, 1).flushed,
        allow_busy=True,  # the report says who else is there
    )
    document, measured = add_operators(document, graph, 1, options=options, effort=effort)
    before, after = (
        _by_kind(plan(graph, profile, 1, options=options))
        for profile in (setting.hardware, hardware_from_document(document))
    )
    calls = sum(len(table.times_s) for table in measured.tables)
    for note in measured.notes():
        work.tell("left out", f"{model.name}: {note}")
    work.tell("tables", document)
    rows = [("all operators", sum(before.values()), sum(after.values()))]
    rows += [(kind, before[kind], seconds) for kind, seconds in after.items()]
    for kind, before_s, after_s in sorted(rows, key=lambda row: -row[2])[: SHOWN + 1]:
        row = {"model": model.name, "calls": calls, "operator": kind, "profile_s": before_s}
        error = before_s / after_s - 1.0 if after_s else 0.0
        work.tell("operators", {**row, "measured_s": after_s, "error": error})
    return document


def _by_kind(planned: Plan) -> dict[str, float]:
    """Returns seconds of a step by kind of operator."""
    seconds: dict[str, float] = defaultdict(float)
    for group in planned.groups:
        for op in group.operators:
            seconds[op.kind] += op.compute_s
    return seconds
