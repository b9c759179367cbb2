"""Random faults between containers, under load: does every accepted job end, and end once?

    python -m harness.containers.faults --seed 1 --faults 200

brings docker-compose.yml up from images that `python -m harness.containers.composed` built, keeps
questions in flight, makes one fault after another, and waits after each until the system says that
it is well. Needs root on the engine's host. Fails when a promise is broken; docs/runbook.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from harness.containers.engine import Missing
from harness.containers.fault_kinds import Made
from harness.containers.fault_load import Load
from harness.containers.fault_plan import KINDS, TARGETS, Fault, plan
from harness.containers.fault_system import NOT_YET, FaultSystem, fault_system

WELL_WITHIN_S = 120.0
"""After a fault is over, the system has to be well within this time, on a core of its own."""
TARGET = Path("out/bench/faults.json")


@dataclass(frozen=True)
class Outcome:
    """What a fault did."""

    fault: Fault
    said: str
    """What the system said while the fault lasted; empty if it noticed nothing."""
    well_s: float | None
    """From the fault's end until the system was well; None if it was not in time. The end of a kill
    and of a want of memory is their beginning."""


def meet(system: FaultSystem, fault: Fault) -> Outcome:
    """Makes a fault, holds it, takes it back, and waits until the system is well."""
    made = Made(system, fault)
    begin, said = monotonic(), ""
    made.make()
    if fault.hold_s:
        try:
            time.sleep(max(0.0, begin + fault.hold_s - monotonic()))
            said = system.unwell()
        finally:
            made.heal()
        begin = monotonic()
    since = time.time()
    while reason := system.unwell(since):
        if not reason.endswith(NOT_YET):
            said = said or reason
        if monotonic() - begin > WELL_WITHIN_S * max(1.0, load_per_core()):
            return Outcome(fault, reason, None)
        time.sleep(0.2)
    return Outcome(fault, said, monotonic() - begin)


def load_per_core() -> float:
    """Returns how many processes wanted each core of this machine over the last five minutes."""
    return os.getloadavg()[1] / (os.cpu_count() or 1)


def shake(system: FaultSystem, faults: list[Fault], minutes: float) -> dict[str, Any]:
    """Makes faults for at most `minutes` on a system that is up. Returns the figures."""
    load = Load(system)
    load.start()
    outcomes: list[Outcome] = []
    loads: list[float] = []
    began = monotonic()
    for fault in faults:
        if monotonic() - began > 60 * minutes:
            break
        outcome = meet(system, fault)
        outcomes.append(outcome)
        loads.append(load_per_core())
        took = "NOT WELL" if outcome.well_s is None else f"well after {outcome.well_s:.1f} s"
        print(
            f"{monotonic() - began:6.0f} s {len(outcomes):3} {fault!s:32} {took:20} "
            f"{load.accepted} accepted, {len(load.ends)} ended; {outcome.said[:70]}",
            file=sys.stderr,
            flush=True,
        )
        if outcome.well_s is None:
            break
    load.finish()
    jobs = load.account()
    wrong = jobs.pop("wrong")
    wrong["not well in time"] = sum(outcome.well_s is None for outcome in outcomes)
    wrong.update({f"left running: {what}": n for what, n in system.left_running().items()})
    return {
        "asked_faults": len(faults),
        "faults": len(outcomes),
        "seconds": round(monotonic() - began, 1),
        "load_per_core": {
            "median": round(median(loads or [0.0]), 1),
            "most": round(max(loads, default=0.0), 1),
        },
        "jobs": jobs,
        "kinds": {f"{kind} {target}": figures for (kind, target), figures in _by_kind(outcomes)},
        "well_s": _spread([o.well_s for o in outcomes if o.well_s is not None]),
        "noticed": sum(bool(outcome.said) for outcome in outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "wrong": wrong,
    }


def _by_kind(outcomes: list[Outcome]) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    counted = Counter((o.fault.kind, o.fault.target) for o in outcomes)
    rows = []
    for kind in KINDS:
        for target in TARGETS:
            own = [o for o in outcomes if (o.fault.kind, o.fault.target) == (kind, target)]
            well = _spread([o.well_s for o in own if o.well_s is not None])
            if own:
                rows.append(((kind, target), {"faults": counted[kind, target], **well}))
    return rows


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median_s": round(median(values), 1), "worst_s": round(max(values), 1)}


def table(figures: dict[str, Any]) -> str:
    """Returns the figures as a table: faults, median and worst seconds until well."""
    lines = ["kind    " + "".join(f"{target:>18}" for target in TARGETS)]
    for kind in KINDS:
        cells = []
        for target in TARGETS:
            own = figures["kinds"].get(f"{kind} {target}")
            times = f"{own['faults']}: {own['median_s']:g}, {own['worst_s']:g}" if own else "-"
            cells.append(f"{times:>18}")
        lines.append(f"{kind:8}" + "".join(cells))
    jobs = figures["jobs"]
    lines += [
        "(faults: median and worst seconds from a fault's end until all was well)",
        f"{figures['faults']} faults in {figures['seconds']:.0f} s, {figures['noticed']} noticed; "
        f"well again after {figures['well_s']}; load per core {figures['load_per_core']}",
        f"jobs: {jobs}",
        f"wrong: {figures['wrong']}",
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs, prints and stores; returns 1 if a promise was broken, 2 if something is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0)
    asked = parser.parse_args()
    try:
        system = fault_system()
    except Missing as missing:
        print(f"No fault is made: it {missing}.", file=sys.stderr)
        return 2
    try:
        system.up()
        figures = shake(system, plan(asked.seed, asked.faults), asked.minutes)
    finally:
        left = system.down()
    figures["wrong"].update({f"left over: {what}": count for what, count in left.items()})
    print(table(figures))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    head = {"schema": "shardwise.faults/1", "seed": asked.seed}
    TARGET.write_text(json.dumps({**head, **figures}, indent=1) + "\n")
    return 1 if any(figures["wrong"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
