"""Plans run as `shardwise run` runs them, on the one rank that there is: NCCL on a GPU."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shardwise.answers import plan
from shardwise.graph import Graph
from shardwise.measure.real_module import SizedSource
from shardwise.measure.world import World

from .parts import Row, Work, one_line
from .setting import Setting

STEPS, WARM_UP = 5, 2


@dataclass(frozen=True)
class Strategy:
    """What one device leaves to choose."""

    name: str
    micro_batches: int = 1
    recompute: Literal["always", "never"] = "never"
    framework: str = "eager"


STRATEGIES = (
    Strategy("plain"),
    Strategy("4 micro-batches", 4),
    Strategy("recomputation", 1, "always"),
    Strategy("4 micro-batches, recomputation", 4, "always"),
    Strategy("compiled", framework="compiled"),
)


def measure(setting: Setting, work: Work, model: SizedSource) -> None:
    """Tells time and peak memory of each strategy beside what its plan predicts."""
    work.tell("doing", f"capturing {model.name}")
    graph = model.captured(setting.dtype)
    for strategy in STRATEGIES:
        what = f"{model.name}, {strategy.name}"
        if work.left_s <= 0:
            work.tell("left out", f"{what}: no time left")
            continue
        work.tell("doing", f"running {what}")
        try:
            work.tell("plan", _run(setting, graph, strategy))
        # A plan that does not run says so; the others go on.
        except Exception as error:
            work.tell("left out", f"{what}: {one_line(error)}")


def _run(setting: Setting, graph: Graph, strategy: Strategy) -> Row:
    """Returns what one strategy took, and what was predicted with the measured profile."""
    from shardwise.execute.training import RunOptions, train

    options = replace(
        setting.options(strategy.framework),
        recompute=strategy.recompute,
        micro_batches=(strategy.micro_batches,),
    )
    planned = plan(graph, setting.measured, 1, options=options)
    with tempfile.TemporaryDirectory() as folder:
        world = World(0, 1, 0, 1, f"file://{Path(folder, 'meeting')}")
        ran = train(planned, world, RunOptions(graph, steps=STEPS, warm_up=WARM_UP))
    assert ran is not None  # of rank 0, which this is
    predicted, step_s, peak = (
        ran["predicted"],
        ran["iteration_s"]["median"],
        ran["peak_bytes"]["max"],
    )
    return {
        "model": graph.name,
        "strategy": strategy.name,
        "backend": ran["backend"],
        "step_s": step_s,
        "predicted_s": predicted["replayed_time_s"],
        "time_error": predicted["replayed_time_s"] / step_s - 1.0,
        "peak_bytes": peak,
        "predicted_peak_bytes": predicted["peak_bytes"],
        "peak_error": predicted["peak_bytes"] / peak - 1.0,
        "fallbacks": len(ran["fallbacks"]),
        "compiled_operators": ran["compiled_operators"],
    }
