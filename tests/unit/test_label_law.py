"""The law on labels: what a label says, pinned, replays as long as the strategy that has it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from harness.graph_builder import mlp
from harness.label_strategies import pinned
from harness.models.comparison_models import residual_block
from harness.models.shortened import shortened
from harness.tiers import some
from shardwise.advise import Options
from shardwise.advise.label import AGREES
from shardwise.advise.neighbours import with_neighbours
from shardwise.advise.summary import Summaries
from shardwise.capture.presets import preset_names
from shardwise.cost.options import quiet
from shardwise.graph import Graph
from shardwise.hardware import Devices, load_hardware
from shardwise.search.chosen import fastest
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Subject

H100 = load_hardware("dgx-h100")
SMALL: dict[str, Callable[[], Graph]] = {
    "mlp": mlp,
    "residual": residual_block,
    "gpt2": lambda: shortened("gpt2", 1),
    "llama-8b": lambda: shortened("llama-8b", 1),
}
CASES = [(name, gpus) for name in (*SMALL, *preset_names()) for gpus in (8, 64)]


def preset(name: str) -> Graph:
    pytest.importorskip("torch")
    from shardwise.capture import capture

    return capture(name)


@pytest.mark.parametrize(("name", "gpus"), some(CASES, lambda case: case[0] in SMALL))
def test_what_a_label_says_takes_as_long(name: str, gpus: int) -> None:
    graph = SMALL[name]() if name in SMALL else preset(name)
    options = Options(time_limit_s=None if name in SMALL else 120.0)
    searches = search_fitting(Subject.of(graph), H100, Devices.alike(gpus), options)
    searches, _ = with_neighbours(searches, quiet)
    best = fastest(searches)
    if best is None:
        pytest.skip("nothing fits")
    label = Summaries(searches).label(best.search, best.point)
    assert len(label.split(", ")) <= 3 and "%" not in label, label
    other = pinned(label, searches, best)
    if other is None:
        assert re.match("mixed: .* and |mixed: mostly ", label), label
        return
    assert other.fits, label
    assert other.time_s <= best.replayed_time_s * (1 + AGREES), label
