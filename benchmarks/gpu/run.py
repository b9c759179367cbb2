"""A run: its parts one after another, the report and the profile written after each."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep, time

from shardwise.errors import BadInput
from shardwise.files import write_whole
from shardwise.hardware import hardware_document
from shardwise.outfiles import write_json

from . import host, kernels, machine, plans, steps, tables
from .parts import Outcome, Part, Runner
from .profile import base_profile, with_measured
from .report import Report, markdown
from .setting import Setting, make_setting

NOTHING = "no GPU: nothing to measure"
COOLING_S, RESERVE_S = 3.0, 8.0
"""What is sampled at the end, when nothing runs any more; that, a part's overtime, the files."""


def parts(setting: Setting) -> list[Part]:
    """Returns the parts in order: what steps are predicted from comes before them."""
    return [
        Part("host", 30, host.measure),
        Part("products", 45, kernels.products),
        Part("attention", 20, kernels.attention),
        Part("operators", 100, tables.measure),
        Part("plans", 45, partial(plans.measure, model=setting.stepped[0])),
        *(Part(f"steps of {m.name}", 75, partial(steps.measure, model=m)) for m in setting.stepped),
    ]


def run(
    device: str, quick: bool, budget_s: float, out: Path, say: Callable[[str], object] = print
) -> int:
    """Returns the exit code: 0 where something was measured or there is no GPU, else 1.

    Raises `BadInput` for a GPU that is not there, and for a CPU without `quick`.
    """
    import torch

    began, there = monotonic(), torch.cuda.is_available()
    if device == "auto" and not there:
        say(NOTHING)
        return 0
    if device == "cuda" and not there:
        raise BadInput("no GPU here", field="device", expected="auto, or cpu with --quick")
    if device == "cpu" and not quick:
        raise BadInput("a CPU takes hours", field="device", expected="cpu with --quick")
    if device == "cpu":
        # Threads that share cores with other programs wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:
        device = "cuda"
    out.mkdir(parents=True, exist_ok=True)
    with Runner(device != "cpu") as runner:
        return _run(runner, device, quick, (began, began + budget_s), out, say)


def _run(
    runner: Runner,
    device: str,
    quick: bool,
    time_s: tuple[float, float],
    out: Path,
    say: Callable[[str], object],
) -> int:
    """Returns the exit code of a run on a device that there should be.

    `time_s` has when the run began and when it is to end, as `monotonic()`.
    """
    described = runner.run(Part("machine", 0, machine.describe), device, time_s[1] - monotonic())
    if described.error:
        say(f"the device does not answer: {described.error}")
        return 1
    (facts,) = described.rows["machine"]
    say(f"{facts['name']}, torch {facts['torch']}")
    sampler = machine.Sampler(facts.get("uuid"))
    try:
        base = base_profile(facts, device)
        named = replace(
            base,
            name=f"{base.name}-measured",
            provenance=f"{base.provenance}; of {facts['name']} what sources say was measured",
        )
        setting = replace(make_setting(device, quick, facts["dtype"], base), measured=named)
        asked = {"device": device, "quick": quick, "dtype": setting.dtype, "profile": base.name}
        asked["when"] = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
        report = Report(asked, facts | sampler.facts)
        report.before = sampler.during(0.0, time())
        _run_all(runner, setting, report, time_s, sampler, out, say)
    finally:
        sampler.stop()
    say(f"wrote report.md, report.json and profile.json to {out}")
    return exit_code(report.parts)


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Returns 1 where all parts failed before they told anything."""
    return int(all(outcome.error and not outcome.rows for outcome in outcomes))


def _run_all(
    runner: Runner,
    setting: Setting,
    report: Report,
    time_s: tuple[float, float],
    sampler: machine.Sampler,
    out: Path,
    say: Callable[[str], object],
) -> None:
    """Runs all parts; each gets its share of the time that those before it left."""
    waiting = parts(setting)
    for number, part in enumerate(waiting):
        left_s = time_s[1] - RESERVE_S - monotonic()
        limit_s = max(left_s, 0.0) * part.share / sum(other.share for other in waiting[number:])
        outcome = runner.run(part, setting, limit_s)
        outcome.power = sampler.during(outcome.began, outcome.ended)
        for row in outcome.rows.get("sustained", []):
            row |= sampler.during(row["began"], row["ended"])
        report.parts.append(outcome)
        if number == len(waiting) - 1 and outcome.power:
            sleep(COOLING_S)
            report.after = sampler.during(outcome.ended + 1.0, time())
        report.seconds = monotonic() - time_s[0]
        measured = with_measured(setting.measured, outcome, report.machine, setting.device)
        setting = replace(setting, measured=measured)
        write_json(hardware_document(measured), str(out / "profile.json"))
        write_json(report, str(out / "report.json"))
        write_whole(out / "report.md", markdown(report).encode())
        say(f"{part.name}: {outcome.ended - outcome.began:.0f} s {outcome.error}".rstrip())
