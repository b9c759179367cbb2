"""What recipes say: the starting points that trainers' projects publish, beside our answer.

The table is shardwise/data/recipes.toml. A recipe is for a model, which is known by its name or by
its layers, width and vocabulary, and for a number of GPUs. Of every project it is the one for the
length of sequence and the number of GPUs that are nearest to what is asked. Its degrees of tensor
and pipeline parallelism, ZeRO stage, recomputation and samples of a micro-batch are kept; the rest
of the devices divide samples, and the micro-batches are what the batch of the graph then needs.
Pipelines have stages of equal layers and 1F1B (`pipelines.py`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import cache, partial
from math import log

import msgspec

from shardwise import validation
from shardwise.cost.options import Options, Progress
from shardwise.documents.comparison import RECIPE
from shardwise.documents.parallelism import Parallelism, Recomputed, text_of
from shardwise.errors import BadInput, SolverError
from shardwise.files import DATA
from shardwise.graph import Graph
from shardwise.graph.step import step_of
from shardwise.hardware import Hardware
from shardwise.peers.answer import Answer
from shardwise.peers.evaluate import Point, point_of
from shardwise.peers.pipelines import INTERLEAVED, SCATTERING, piped_point, priced_in
from shardwise.peers.practitioners import practitioners, replayed
from shardwise.replay.replay import Replayer
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.uniform import UniformModel
from shardwise.sharding.recipes import RECIPES
from shardwise.texts import counted

TABLE = DATA / "recipes.toml"

_ATTENTION = "scaled_dot_product_attention"
_EMBEDDING = "aten.embedding."


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A project that publishes recipes; `commit` and `date` are those that were read."""

    title: str
    trainer: str
    repository: str
    commit: str
    date: date


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One recipe: `gpus` of its example (0 for any), degrees, `samples` of a micro-batch on one
    device, `batch` of a step where it says so, `seq` tokens of a sample; `virtual` stages of a
    device, above 1 where they are interleaved."""

    source: str
    name: str
    model: str
    gpus: int
    seq: int
    zero: int
    samples: int
    file: str
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    expert: int = 1
    sequence: bool = False
    recompute: Recomputed = "none"
    batch: int | None = None
    precision: str = "bf16"


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All recipes; `models` are layers, width and vocabulary."""

    models: dict[str, tuple[int, int, int]]
    sources: dict[str, Source]
    recipes: list[Recipe]


@cache
def table() -> Table:
    """Returns the table that is shipped."""
    return validation.convert(tomllib.loads(TABLE.read_text("utf-8")), Table, file=TABLE.name)


def recipes_for(graph: Graph, gpus: int) -> list[Recipe]:
    """Returns the nearest recipe of every project for a graph, in the order of the table."""
    known, seq = table(), step_of(graph).seq
    names = {graph.name} if graph.name in known.models else set()
    names |= {name for name, sizes in known.models.items() if sizes == _sizes(graph)}
    nearest: dict[str, Recipe] = {}
    for recipe in known.recipes:
        if recipe.model in names:
            other = nearest.get(recipe.source)
            if other is None or _distance(recipe, gpus, seq) < _distance(other, gpus, seq):
                nearest[recipe.source] = recipe
    return list(nearest.values())


def _distance(recipe: Recipe, gpus: int, seq: int | None) -> tuple[float, float]:
    return (
        0.0 if seq is None else abs(log(recipe.seq / seq)),
        abs(log(recipe.gpus / gpus)) if recipe.gpus else 0.0,
    )


def _sizes(graph: Graph) -> tuple[int, int, int] | None:
    """Returns layers, width and vocabulary of a decoder; None where the graph is none."""
    layers = sum(_ATTENTION in operator.kind for operator in graph.operators)
    shapes = [
        graph.tensors[name].shape
        for operator in graph.operators
        if operator.kind.startswith(_EMBEDDING)
        for name in operator.inputs
        if graph.tensors[name].role == "parameter"
    ]
    if not shapes or not layers:
        return None
    vocabulary, width = max(shapes)
    return layers, width, vocabulary


def recipe_answers(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    options: Options,
    replayers: Sequence[Replayer],
    limit_bytes: float,
    progress: Progress,
) -> Iterator[Answer]:
    """Yields an answer for the nearest recipe of every project; without points where it cannot be
    priced, with the reason.

    `replayers` are those of every number of micro-batches.
    """
    staged = cache(partial(StagedSubject.of, graph))
    for recipe in recipes_for(graph, gpus):
        source = table().sources[recipe.source]
        answer = Answer(
            f"{RECIPE}{recipe.source}",
            f"{source.title} recipe",
            f"{recipe.name} of {source.repository}, {recipe.file} ({source.date})",
            notes=tuple(_notes(recipe, graph, gpus, options)),
            details={"recipe": recipe.name, "gpus": recipe.gpus, "date": str(source.date)},
        )
        given = _parallelism(recipe, graph.batch_size, gpus)
        if isinstance(given, str):
            yield replace(answer, reason=given)
            continue
        text = text_of(given)
        if recipe.pipeline > 1:
            each = f" × {recipe.virtual} interleaved" if recipe.virtual > 1 else ""
            text = f"pp {recipe.pipeline}{each} × {text}"
        try:
            if recipe.pipeline > 1:
                scattered = source.trainer in SCATTERING
                model = UniformModel(graph, hardware, gpus, staged(), scattered=scattered)
                point = _piped(recipe, given, model, options, progress)
            else:
                point = _priced(given, replayers, limit_bytes, progress)
        except (SolverError, BadInput) as error:
            yield replace(answer, reason=getattr(error, "problem", str(error)))
            continue
        if point is None:
            reason = f"{text} is left out by the options or by what the model can split"
            yield replace(answer, reason=reason)
            continue
        yield replace(answer, points=(replace(point, label=text),))


def _notes(recipe: Recipe, graph: Graph, gpus: int, options: Options) -> Iterator[str]:
    """Yields where the recipe is for another job than is asked for."""
    if recipe.gpus not in (0, gpus):
        yield f"the nearest recipe is for {counted(recipe.gpus, 'GPU')}, not {gpus}"
    seq = step_of(graph).seq
    if seq not in (None, recipe.seq):
        yield f"its sequences have {recipe.seq:,} tokens, not {seq:,}"
    if recipe.batch not in (None, graph.batch_size):
        yield f"its batch is {recipe.batch:,}, not {graph.batch_size}"
    if recipe.precision in RECIPES and options.precision not in RECIPES:
        yield f"its linear layers are in 8 bits: --precision {recipe.precision} prices that"


def _parallelism(recipe: Recipe, batch: int | None, gpus: int) -> Parallelism | str:
    """Returns a recipe's strategy on the devices of a stage of this many GPUs, or why there is none
    to price."""
    beside = f"tp {recipe.tensor}" + (f", pp {recipe.pipeline}" if recipe.pipeline > 1 else "")
    degrees = {
        f"context {recipe.context}": recipe.context,
        f"expert {recipe.expert}": recipe.expert,
    }
    unknown = [name for name, degree in degrees.items() if degree > 1]
    if unknown:
        return f"not priced yet: {' and '.join(unknown)} parallelism (beside {beside})"
    if gpus % (recipe.tensor * recipe.pipeline):
        return f"{beside} does not divide {counted(gpus, 'GPU')}"
    data = gpus // (recipe.tensor * recipe.pipeline)
    if batch is None or batch % (data * recipe.samples):
        return (
            f"a batch of {batch} samples does not divide into micro-batches of {recipe.samples} on "
            f"each of {data} devices"
        )
    zero = recipe.zero if data > 1 else 0
    return Parallelism(
        replicas=1 if zero else data,
        shards=data if zero else 1,
        tensor=recipe.tensor,
        sequence=recipe.sequence and recipe.tensor > 1,
        zero=zero,
        recompute=recipe.recompute,
        micro_batches=batch // (data * recipe.samples),
    )


def _priced(
    given: Parallelism, replayers: Sequence[Replayer], limit_bytes: float, progress: Progress
) -> Point | None:
    """Returns a strategy with its replayed step, None where the options or the model have none.

    Raises as `practitioners` does.
    """
    for replayer in replayers:
        if replayer.problem.context.micro_batches == given.micro_batches:
            own = practitioners(replayer.problem, progress, allowed=lambda one: one == given)
            known = replayed(replayer, own, limit_bytes)
            best = min(known, key=lambda one: one.rank(limit_bytes), default=None)
            if best is None:
                return None
            practice = best.practice
            point = point_of(best.problem, practice.choices, practice.edge_choices)
            return replace(point, step=best.step)
    return None


def _piped(
    recipe: Recipe, given: Parallelism, model: UniformModel, options: Options, progress: Progress
) -> Point | None:
    """Returns a strategy in a recipe's stages of equal layers under 1F1B, interleaved where a
    device has several; None as `priced_in`, and for micro-batches that are not asked for.

    Raises as `UniformModel.costed` and `priced_in`.
    """
    model.bounds(recipe.pipeline, recipe.virtual)
    if given.micro_batches not in options.counts(model.batch):
        return None
    costed = model.costed(recipe.pipeline, given.micro_batches, options, progress, recipe.virtual)
    best = priced_in(costed, INTERLEAVED if recipe.virtual > 1 else "1f1b", given, progress)
    return None if best is None else piped_point(best.pipeline)
