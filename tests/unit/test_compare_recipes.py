"""Published recipes in a comparison: which one is nearest, what is priced, and why another is not.

That a recipe's step is the one of its configuration is checked against `explain --like`'s pricing.
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from datetime import date

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from harness.models.comparison_models import residual_block
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cli.compare import compare as compare_command
from shardwise.cost.options import quiet
from shardwise.documents.comparison import RECIPE, ComparedMethod
from shardwise.documents.parallelism import Parallelism
from shardwise.graph import read_graph, write_graph
from shardwise.hardware import load_hardware
from shardwise.peers import compare, recipes
from shardwise.peers.pipelines import priced_in
from shardwise.peers.recipes import Recipe, Source, Table, recipes_for, table
from shardwise.search.pipelines.uniform import UniformModel
from shardwise.trainers.price import price

BLOCK = residual_block()
MACHINE = load_hardware("dgx-h100")
OPTIONS = Options(micro_batches=(1, 2), zero=(0, 3), framework="eager")
SOURCE = Source("Some trainer", "torchtitan", "some/trainer", "c0ffee", date(2026, 8, 21))
RECIPE_OF_BLOCK = Recipe(
    "some", "block", BLOCK.name, 16, 1, zero=3, samples=(BLOCK.batch_size or 0) // 16, file="x.py"
)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes of a table for the block alone, to be filled."""
    made = Table({BLOCK.name: (1, 1, 1)}, {"some": SOURCE}, [])
    monkeypatch.setattr(recipes, "table", lambda: made)
    return made.recipes


def method_of(recipe: Recipe, known: list[Recipe], options: Options = OPTIONS) -> ComparedMethod:
    known[:] = [recipe]
    document = compare(BLOCK, MACHINE, 8, options, proposals=10)
    (method,) = (m for m in document.methods if m.method == f"{RECIPE}some")
    assert (method.method in (document.ranking or ())) == (method.best is not None)
    return method


def test_every_recipe_of_the_table_is_of_a_source_and_a_model() -> None:
    shipped = table()
    assert {recipe.source for recipe in shipped.recipes} == set(shipped.sources)
    assert {recipe.model for recipe in shipped.recipes} == set(shipped.models)
    for recipe in shipped.recipes:
        degrees = recipe.tensor * recipe.pipeline * recipe.context
        assert recipe.gpus % degrees == 0, recipe.name
        assert recipe.samples > 0 and recipe.seq > 0 and recipe.file
    keys = [(recipe.source, recipe.model, recipe.gpus, recipe.seq) for recipe in shipped.recipes]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("gpus", "names"), [(8, ("2gpu", "Table 1")), (48, ("2gpu", "llama3_8b")), (128, ("2", "3:"))]
)
def test_the_nearest_is_found_by_the_sizes_of_the_model(gpus: int, names: tuple[str, ...]) -> None:
    graph = read_graph(shipped_graph("llama-8b"))
    assert graph.name not in table().models
    recipes = recipes_for(graph, gpus)
    assert [one.source for one in recipes] == ["megatron-bridge", "torchtitan"]
    assert all(name in one.name for one, name in zip(recipes, names, strict=True))
    assert not recipes_for(BLOCK, gpus)


def test_its_step_is_that_of_its_configuration(known: list[Recipe]) -> None:
    method = method_of(RECIPE_OF_BLOCK, known)
    (point,) = method.points
    own = Parallelism(shards=8, zero=3, micro_batches=2)
    priced = price(BLOCK, MACHINE, 8, own, OPTIONS).plan.predicted
    assert point.replayed_time_s == priced.replayed_time_s
    assert point.replayed_peak_bytes == priced.peak_bytes
    assert point.slower_by is not None and point.label == "dp_shard 8, 2 micro-batches"
    assert "for 16 GPUs, not 8" in method.notes[0]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"pipeline": 2, "context": 4, "expert": 2},
            "context 4 and expert 2 parallelism (beside tp 1, pp 2)",
        ),
        ({"pipeline": 2, "virtual": 3}, "layers do not divide into 2 times 3 stages"),
        ({"pipeline": 2, "samples": 4}, "layers do not divide into 2 stages"),
        ({"expert": 8}, "expert 8"),
        ({"tensor": 16}, "tp 16 does not divide 8 GPUs"),
        ({"samples": 1000}, "micro-batches of 1000"),
        ({"zero": 1}, "left out by the options"),
    ],
)
def test_what_cannot_be_priced_says_why(
    changed: dict[str, object], reason: str, known: list[Recipe]
) -> None:
    method = method_of(replace(RECIPE_OF_BLOCK, **changed), known)
    assert not method.points and reason in (method.reason or "")


def test_a_recipe_in_8_bits_is_priced_as_the_question_has_it(known: list[Recipe]) -> None:
    plain = method_of(RECIPE_OF_BLOCK, known)
    method = method_of(replace(RECIPE_OF_BLOCK, precision="fp8"), known)
    assert method.points[0].replayed_time_s == plain.points[0].replayed_time_s
    assert "its linear layers are in 8 bits: --precision fp8 prices that" in method.notes


def test_a_number_of_micro_batches_that_was_not_searched(known: list[Recipe]) -> None:
    method = method_of(RECIPE_OF_BLOCK, known, with_fields(OPTIONS, micro_batches=(1,)))
    assert not method.points and "2 micro-batches" in (method.reason or "")


def test_both_kinds_are_rows_of_the_text(
    known: list[Recipe],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # no cell wraps
    file = tmp_path_factory.mktemp("compare") / "block.json"
    write_graph(BLOCK, file)
    where = ("--hardware", "dgx-h100", "--gpus", "8", "--proposals", "10", "--quiet")
    for recipe, text in (
        (RECIPE_OF_BLOCK, "dp_shard 8"),
        (replace(RECIPE_OF_BLOCK, context=2), "not priced yet: context 2"),
    ):
        known[:] = [recipe]
        done = CliRunner().invoke(compare_command, [str(file), *where], catch_exceptions=False)
        row = done.stdout[done.stdout.index("Some trainer recipe") :]
        assert text in " ".join(row.split())
        assert "block of some/trainer, x.py (2026-08-21); the nearest" in done.stderr


def test_a_pipeline_s_step_is_that_of_equal_stages(
    known: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 in two stages of two data-parallel devices with ZeRO-1: eight micro-batches of two."""
    gpt2, options = (
        read_graph(shipped_graph("gpt2")),
        Options(micro_batches=(8,), framework="eager"),
    )
    made = Table({gpt2.name: (1, 1, 1)}, {"some": SOURCE}, known)
    monkeypatch.setattr(recipes, "table", lambda: made)
    known[:] = [
        Recipe("some", "gpt", gpt2.name, 4, 1024, zero=1, samples=4, file="x.py", pipeline=2)
    ]
    document = compare(gpt2, MACHINE, 4, options, proposals=10)
    (method,) = (m for m in document.methods if m.method == f"{RECIPE}some")
    (point,) = method.points
    stages = UniformModel(gpt2, MACHINE, 4).costed(2, 8, options, quiet)
    given = Parallelism(shards=2, zero=1, micro_batches=8)
    own = priced_in(stages, "1f1b", given, quiet)
    assert own is not None and point.pipeline
    assert point.replayed_time_s == own.pipeline.step_s
    assert point.pipeline.peak_bytes == [round(peak) for peak in own.pipeline.peak_bytes]
    assert point.label == "pp 2 × dp_shard 2 (ZeRO-1), 8 micro-batches"
    assert method.method in (document.ranking or ())
