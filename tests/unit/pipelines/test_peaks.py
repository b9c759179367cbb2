"""What devices of a pipeline hold: gradients that come and go, and memory that bounds count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from shardwise.cost.options import quiet
from shardwise.hardware import load_hardware
from shardwise.replay.replay import Replayer
from shardwise.replay.stage_parts import BACKWARD, FORWARD
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.hops import StageAxes
from shardwise.search.pipelines.passes import PassesGame
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.searched import Run, Searched
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Search, mesh_of

L4 = load_hardware("l4")
NAMES = ("1f1b", "gpipe", "1f1b-eager", "interleaved:2", "zb-h1", "zbv", "dualpipev")


def drawn(random: np.random.Generator, search: Search) -> tuple[np.ndarray, np.ndarray]:
    """Returns a strategy of the whole model."""
    problem = search.problem
    choices = np.array([random.integers(len(c.time_s)) for c in problem.costs], dtype=np.uint32)
    cells = [e.table.cell(choices[e.source], choices[e.target]) for e in problem.edges]
    counts = [int(e.table.count[cell]) for e, cell in zip(problem.edges, cells, strict=True)]
    return choices, np.array([random.integers(n) for n in counts], dtype=np.uint32)


def splitting(search: Search) -> Search:
    """Returns the search whose replayer has backward in two parts."""
    write = partial(Replayer, search.problem, search.options.step, search.subject.kits)
    return replace(search, replayer_of=cache(partial(write, split=True)))


def pipeline_of(
    run: Run,
    search: Search,
    own: StageReplayer,
    staged: StagedSubject,
    units: Units,
    bounds: Sequence[int],
    chosen: tuple[np.ndarray, np.ndarray],
) -> Pipeline:
    mesh, tied = mesh_of(L4, 4), [one.copies for one in staged.tied]
    axes = StageAxes.of(L4, mesh, 2)
    assert axes is not None
    replayed = own.replay(*chosen, bounds, run.placed, tied)
    where = mesh, units, staged.tied, axes
    return Pipeline(search, *where, run.of.name, tuple(bounds), *chosen, replayed, run.each)


@pytest.mark.parametrize("name", NAMES)
def test_no_stage_holds_less_than_bounds_count(
    name: str, search: Search, staged: StagedSubject, units: Units
) -> None:
    """Strategies and cuts drawn at random, on two devices a stage."""
    run = Run(Searched.of(name), 2, 8)
    own = splitting(search) if run.of.splits else search
    game, random, shares = PassesGame(own, units, quiet), np.random.default_rng(5), []
    replayer = StageReplayer(own.own_replayer, units.of_group)
    for _ in range(3):
        cuts = random.choice(np.arange(1, len(units)), run.stages - 1, replace=False)
        bounds = (0, *sorted(cuts.tolist()), len(units))
        chosen = drawn(random, own)
        pipeline = pipeline_of(run, own, replayer, staged, units, bounds, chosen)
        for stage, kept in enumerate(run.surely_kept):
            memory = game.memory(kept)
            owners = game._range(*bounds[stage : stage + 2]).owners
            held = memory.each(own.problem, chosen[0][None], chosen[1][None])[:, 0] @ owners
            shares.append((held + memory.constant) / pipeline.peak_bytes[stage])
    assert max(shares) <= 1.0 and max(shares) > 0.6


def test_gradients_come_with_the_first_backward(search: Search, units: Units) -> None:
    choices = np.array([int(c.time_s.argmin()) for c in search.problem.costs], dtype=np.uint32)
    own = StageReplayer(search.own_replayer, units.of_group)
    parts = own.replay(choices, np.zeros(len(search.problem.edges), np.uint32), (0, 7, 14)).parts
    gradients = parts.gradient_bytes.sum(axis=1)
    first, later, _ = (parts.peak_bytes[:, FORWARD, turn] for turn in range(3))
    assert later - first == pytest.approx(gradients, rel=2e-3)
    assert (parts.peak_bytes[:, BACKWARD, 0] <= parts.peak_bytes[:, BACKWARD, 1]).all()
    assert parts.lasting_bytes == pytest.approx(parts.start_bytes + gradients)
    assert (parts.kept_bytes + parts.start_bytes <= first).all()
    assert (parts.update_bytes >= parts.lasting_bytes).all()


def test_gpipe_needs_no_gradients_beside_all_micro_batches(
    search: Search, staged: StagedSubject, units: Units
) -> None:
    chosen = drawn(np.random.default_rng(1), search)
    own, made = StageReplayer(search.own_replayer, units.of_group), dict[str, Pipeline]()
    for name in ("gpipe", "1f1b-eager"):
        run = Run(Searched.of(name), 2, 8)
        made[name] = pipeline_of(run, search, own, staged, units, (0, 7, 14), chosen)
    gpipe, parts = made["gpipe"], made["gpipe"].replayed.parts
    whole = parts.lasting_bytes + 8 * (parts.kept_bytes + np.array(gpipe.incoming_bytes))
    less = np.minimum(parts.gradient_bytes.sum(axis=1), parts.kept_bytes)
    assert (gpipe.peak_bytes > made["1f1b-eager"].peak_bytes).all()
    running = parts.peak_bytes.max(axis=(1, 2)) - parts.lasting_bytes - parts.kept_bytes
    on_the_way = 3 * sum(gpipe.incoming_bytes)
    assert (gpipe.peak_bytes <= whole + running + on_the_way - 0.5 * less).all()
