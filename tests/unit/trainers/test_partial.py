"""Recomputation of some blocks: the fewest that fit, priced in the form that is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from harness.graph_builder import mlp
from harness.models.shortened import shortened
from harness.trainer_plans import plan_of
from shardwise.answers import Options
from shardwise.cost.options import quiet
from shardwise.cost.program import assumed
from shardwise.documents.parallelism import Parallelism, text_of
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.search.search import Draft, Subject, mesh_of
from shardwise.trainers.changes import change_text
from shardwise.trainers.formats import write_for
from shardwise.trainers.partial import Layers, Tried, fewest, parts_of
from shardwise.trainers.plan import plan_for
from shardwise.trainers.price import price, price_configuration
from shardwise.trainers.read import configuration_of
from shardwise.trainers.spaces import SPACES
from shardwise.trainers.stated import with_stated
from shardwise.trainers.strategies import Parts, Replayable

MACHINE = load_hardware("dgx-h100")
LAYERS = 6
OPTIONS = Options(micro_batches=(1,), time_limit_s=1.0)


@pytest.fixture(scope="module")
def model() -> Graph:
    return shortened("gpt2", LAYERS)


def parts(model: Graph, stated: Mapping[str, str], options: Options = OPTIONS) -> Parts:
    """The strategies of the problem that a trainer's plan searches, its step as stated."""
    options = assumed(with_stated(options, stated, ()), MACHINE)
    draft = Draft.of(Subject.of(model), MACHINE, mesh_of(MACHINE, 2), options, quiet, 1)
    search = draft.joined(quiet)
    return Parts(Replayable(search, search.own_replayer), quiet)


def zero_of(trainer: str) -> int:
    return 1 if trainer == "megatron" else 3


@pytest.mark.parametrize(
    ("layers", "told"),
    [("all", []), ("first", [1, 2, 3, 4, 5]), ("every", [1, 2, 3])],
)
def test_parts_are_ordered_by_the_blocks_that_run_again(layers: Layers, told: list[int]) -> None:
    full = Parallelism(recompute="full")
    found = parts_of(full, layers, LAYERS)
    assert [len(range(LAYERS)[one.recomputed_blocks]) for one in found] == told


@pytest.mark.parametrize("trainer", [name for name in SPACES if SPACES[name].layers != "all"])
def test_a_plan_recomputes_no_more_than_it_needs(model: Graph, trainer: str) -> None:
    layers = SPACES[trainer].layers
    full = Parallelism(shards=2, zero=zero_of(trainer), recompute="full")
    options = replace(OPTIONS, zero=(zero_of(trainer),))
    known = parts(model, SPACES[trainer].implies, options)
    steps = [known.of(one) for one in parts_of(full, layers, LAYERS)]
    peaks = [one.step.peak_bytes for one in steps if one is not None]
    times = [one.step.time_s for one in steps if one is not None]
    assert peaks == sorted(peaks, reverse=True) and times == sorted(times)
    # Selective recomputation is simpler, and within epsilon of it in Megatron.
    options = replace(options, memory_limit_bytes=round(peaks[1] + 1), simplest="never")
    plan = plan_for(model, MACHINE, 2, trainer, options=options)
    assert plan.trainer is not UNSET
    assert plan.trainer.parallelism == parts_of(full, layers, LAYERS)[1]
    assert plan.predicted.peak_bytes == pytest.approx(peaks[1])
    assert plan.predicted.replayed_time_s == pytest.approx(times[1])


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
def test_the_file_is_read_and_priced_alike(model: Graph, trainer: str) -> None:
    full = Parallelism(shards=2, zero=zero_of(trainer), recompute="full")
    given = parts_of(full, SPACES[trainer].layers, LAYERS)[1]
    samples = (model.batch_size or 0) // 2
    text = write_for(plan_of(given, samples=samples, sequence_length=1024), trainer).text
    read = configuration_of(text, 2, "file")
    assert read.parallelism == given
    priced = price_configuration(model, MACHINE, 2, read, OPTIONS, file="file")
    known = parts(model, read.stated).of(given)
    assert known is not None
    assert priced.plan.predicted.replayed_time_s == pytest.approx(known.step.time_s)
    texts = [one.text for one in priced.alternatives]
    assert any(text.startswith("no recomputation instead of partial (") for text in texts)


def test_words_of_parts() -> None:
    full = Parallelism(shards=2, zero=3, recompute="full")
    first, third = (
        Parallelism(shards=2, zero=3, recompute="full", recompute_layers=5),
        Parallelism(shards=2, zero=3, recompute="full", recompute_every=3),
    )
    assert text_of(first) == "dp_shard 2, partial (5 layers) recomputation"
    assert change_text(full, third) == "partial (1 layer in 3) recomputation instead of full"


@pytest.mark.parametrize(
    "members",
    [
        {"recompute": "full", "recompute_layers": 0},
        {"recompute": "full", "recompute_every": -2},
        {"recompute": "full", "recompute_layers": 2, "recompute_every": 2},
        {"recompute": "selective", "recompute_layers": 2},
    ],
)
def test_parts_that_are_none_are_refused(model: Graph, members: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as raised:
        price(model, MACHINE, 2, Parallelism(shards=2, zero=3, **members), OPTIONS)
    assert str(raised.value.field).startswith("parallelism")
    document = msgspec.json.encode({"shards": 2, **members})
    if min(value for value in members.values() if isinstance(value, int)) < 1:
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(document, type=Parallelism)


def test_a_model_without_blocks_recomputes_all_of_it() -> None:
    whole = Parallelism(shards=2, zero=3, recompute="full")
    some = Parallelism(shards=2, zero=3, recompute="full", recompute_layers=2)
    prices = [price(mlp(64, 64, 2), MACHINE, 2, one, OPTIONS).plan for one in (whole, some)]
    assert prices[0].predicted.peak_bytes == prices[1].predicted.peak_bytes


@pytest.mark.parametrize("bend", [0.0, 0.7, -0.7])
@pytest.mark.parametrize("needed", [1, 2, 40, 79])
def test_few_replays_find_the_fewest(bend: float, needed: int) -> None:
    """A straight peak takes two replays, another no more than a bisection and three."""
    full = Parallelism(recompute="full")
    parts = parts_of(full, "first", 80)
    replays: list[int] = []

    def over(count: int) -> float:
        def peak(one: int) -> float:
            return 80.0 - one + bend * one * (80 - one) / 80

        return peak(count) - peak(needed)

    def tried(one: Parallelism) -> Tried:
        count = len(range(80)[one.recomputed_blocks])
        replays.append(count)
        return Tried(one, 1.0, over(count))

    ends = Tried(full, 1.0, over(0)), Tried(full, 1.0, over(80))
    found = fewest(parts, *ends, lambda one: one, tried)
    assert found is not None and found.recompute_layers == needed
    assert len(replays) <= (2 if not bend else 10)
