"""The law on labels: what a label says, pinned, replays as long as the strategy that has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from harness.graph_builder import mlp
from harness.label_strategies import pinned
from harness.models.comparison_models import residual_block
from harness.models.shortened import shortened
from harness.tiers import some
from shardwise.answers import Options
from shardwise.answers.label import AGREES
from shardwise.answers.neighbours import with_neighbours
from shardwise.answers.simplest import simplest
from shardwise.answers.summary import Summaries
from shardwise.capture.presets import preset_names
from shardwise.capture.shipped import load_graph
from shardwise.cost.options import quiet
from shardwise.cost.program import assumed
from shardwise.documents.parallelism import Parallelism
from shardwise.graph import Graph
from shardwise.hardware import Devices, load_hardware
from shardwise.search.chosen import Chosen, fastest
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Search, Subject
from shardwise.trainers.price import price

H100 = load_hardware("dgx-h100")
SMALL: dict[str, Callable[[], Graph]] = {
    "mlp": mlp,
    "residual": residual_block,
    "gpt2": lambda: shortened("gpt2", 1),
    "llama-8b": lambda: shortened("llama-8b", 1),
}
CASES = [(name, gpus) for name in (*SMALL, *preset_names()) for gpus in (8, 64)]


def searches_of(graph: Graph, gpus: int, options: Options) -> list[Search]:
    searches = search_fitting(Subject.of(graph), H100, Devices.alike(gpus), options)
    return with_neighbours(searches, quiet)[0]


@pytest.mark.parametrize(("name", "gpus"), some(CASES, lambda case: case[0] in SMALL))
def test_what_a_label_says_takes_as_long(name: str, gpus: int) -> None:
    graph = SMALL[name]() if name in SMALL else load_graph(name)
    options = assumed(Options(time_limit_s=None if name in SMALL else 60.0), H100)
    searches = searches_of(graph, gpus, options)
    best = fastest(searches)
    if best is None:
        pytest.skip("nothing fits")
    if best.search.charges is None:
        # It ended before it could be asked for what a label allows: time for one number alone.
        few = replace(options, micro_batches=(best.search.micro_batches,))
        searches = searches_of(graph, gpus, few)
        best = fastest(searches)
        assert best is not None
    answer = simplest(searches, best, quiet)
    check(searches, best)
    if answer.faster is not None:
        check(answer.searches, answer.chosen)


def check(searches: Sequence[Search], chosen: Chosen) -> None:
    label = Summaries(searches).label(chosen.search, chosen.point)
    assert len(label.split(", ")) <= 3 and "%" not in label, label
    if label.startswith("mixed"):
        assert re.match("mixed: .* and |mixed: mostly ", label), label
        return
    other = pinned(label, searches, chosen)
    assert other is not None and other.fits, label
    assert other.time_s <= chosen.replayed_time_s * (1 + AGREES), label


def test_a_strategy_that_does_not_fit_has_its_label() -> None:
    """Though copies of its own choice take a few bytes less than those of the label."""
    given = Parallelism(shards=8, tensor=8, sequence=True, zero=3, recompute="full")
    small = Options(micro_batches=(1,), memory_limit_bytes=1e8)
    pricing = price(shortened("llama-8b", 2), H100, 64, given, small, trainer="torchtitan")
    assert not pricing.fits
    assert pricing.plan.predicted.label == "TP 8 (SP) × FSDP 8, recompute in all 2 layers"
