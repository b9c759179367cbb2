"""The functions of `import shardwise`: from a model to a plan, with typed answers for notebooks.

    graph = shardwise.capture(module, (inputs, targets))
    plan = shardwise.plan(graph, "dgx-h100", gpus=8)

An answer is its document (`shardwise.documents`) with a picture: a notebook shows it, `plot`
writes it, `to_pandas` returns the rows, and `to_dict` the JSON that the command line prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shardwise import answers as advice
from shardwise import documents
from shardwise.capture.shipped import load_graph
from shardwise.cost.options import Options, Progress
from shardwise.documents.quote import step_s
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, Offer, load_hardware, read_offers
from shardwise.peers import compare as compare_systems
from shardwise.pictures.bars import quote_picture
from shardwise.pictures.compare import compare_picture
from shardwise.pictures.plots import curve_picture, frontier_picture
from shardwise.pictures.step import step_picture
from shardwise.pipeline.asked import ANY, DEFAULT_SCHEDULES, NO_STAGES
from shardwise.solve import solve
from shardwise.step_sizes import StepSizes, as_it_is
from shardwise.trainers.curve import curve_for

A = TypeVar("A", bound=msgspec.Struct)

MOST_ROWS = 24
"""The number of table rows that a notebook shows."""


class Frontier(documents.Frontier, frozen=True):
    """Every strategy that no other beats in both memory and time (TensorOpt Definition 1)."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the document `shardwise.frontier/1`."""
        return _document(self)

    def plot(self, path: str | Path, scale: str | None = None) -> None:
        """Writes time against memory to a file that ends in .html, .svg or .png.

        `scale` of the axes is `linear` or `log`; by default their range decides.
        """
        frontier_picture(self, scale).write(str(path))

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per point. Raises `BadInput` without pandas."""
        return _frame(self.points)

    def _repr_html_(self) -> str:
        return frontier_picture(self).svg()


class Curve(documents.Curve, frozen=True):
    """The shortest iteration time for every GPU count (TensorOpt §4.1, Profiling)."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the document `shardwise.curve/1`."""
        return _document(self)

    def plot(self, path: str | Path, scale: str | None = None) -> None:
        """Writes time and throughput against GPUs to a file that ends in .html, .svg or .png.

        `scale` of the axes is `linear` or `log`; by default their range decides.
        """
        curve_picture(self, scale).write(str(path))

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per GPU count. Raises `BadInput` without pandas."""
        return _frame(self.points)

    def _repr_html_(self) -> str:
        return curve_picture(self).svg()


class Explanation(documents.Explanation, frozen=True):
    """How each group of a plan is split, what it costs, and what stages do."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the document, `shardwise.explanation/1` or `shardwise.pipeline-explanation/1`."""
        return _document(self)

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per kind of group, or per stage where these are several.
        Raises `BadInput` without pandas."""
        return _frame(self.stages or self.groups)

    def _repr_html_(self) -> str:
        text = "".join(f"<p>{escape(line)}</p>" for line in self.text)
        if self.stages:
            return text + _table(("stage",), [(stage.text,) for stage in self.stages])
        rows = [
            (
                group.name,
                group.repeats,
                group.split,
                f"{group.memory_bytes / 2**30:.2f}",
                f"{group.compute_s * 1e3:.3g}",
                f"{group.communication_s * 1e3:.3g}",
            )
            for group in self.groups
        ]
        head = ("group", "×", "split", "GiB", "compute (ms)", "communication (ms)")
        return text + _table(head, rows)


class WholeExplanation(Explanation, documents.WholeExplanation, frozen=True):
    """The explanation of a plan of one stage."""


class PipelineExplanation(Explanation, documents.PipelineExplanation, frozen=True):
    """The explanation of a plan of several stages."""


class Plan(documents.Plan, frozen=True):
    """One strategy, spelled out far enough for `shardwise.parallelize` to run it."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the document `shardwise.plan/1` or `shardwise.pipeline/1`, which `parallelize`
        takes."""
        return _document(self)

    def plot(self, path: str | Path) -> None:
        """Writes the step over time to a file that ends in .html, .svg or .png."""
        step_picture(self).write(str(path))

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per operator. Raises `BadInput` without pandas."""
        return _frame([op for group in self.groups for op in group.operators])

    def explain(self) -> Explanation:
        """Returns how each group is split, what it costs, and what stages do."""
        kind = PipelineExplanation if self.piped else WholeExplanation
        return _with_views(advice.explain(self), kind)

    def _repr_html_(self) -> str:
        return self.explain()._repr_html_()


class WholePlan(Plan, documents.WholePlan, frozen=True):
    """A plan of one stage."""


class Pipeline(Plan, documents.Pipeline, frozen=True):
    """A plan of several stages."""


class Quote(documents.Quote, frozen=True):
    """Offers on which a job fits, cheapest first (TensorOpt §4.1, Mini-parallelism)."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the document `shardwise.quote/1`."""
        return _document(self)

    def plot(self, path: str | Path) -> None:
        """Writes the prices of the cheapest offers to a file that ends in .html, .svg or .png."""
        quote_picture(self).write(str(path))

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per offer. Raises `BadInput` without pandas."""
        return _frame(self.offers)

    def _repr_html_(self) -> str:
        rows = [
            (
                offer.provider,
                f"{offer.instances} × {offer.instance_type}",
                offer.gpus,
                offer.region,
                f"{offer.usd_per_hour:.2f}",
                f"{step_s(offer, self.overlap):.3g}",
                offer.price_as_of,
            )
            for offer in self.offers
        ]
        columns = ("provider", "instances", "GPUs", "region", "USD/h", "time (s)", "price as of")
        return _table(columns, rows)


class Comparison(documents.Comparison, frozen=True):
    """What practitioners and other systems use, beside our answer (TensorOpt §5.1)."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the document `shardwise.compare/1`."""
        return _document(self)

    def plot(self, path: str | Path) -> None:
        """Writes every system by memory and time to a file that ends in .html, .svg or .png."""
        compare_picture(self).write(str(path))

    def to_pandas(self) -> Any:
        """Returns a DataFrame with one row per strategy. Raises `BadInput` without pandas."""
        frame = _frame([point for method in self.methods for point in method.points])
        names = [method.method for method in self.methods for _ in method.points]
        frame.insert(0, "method", names)
        return frame

    def _repr_html_(self) -> str:
        return compare_picture(self).svg()


def frontier(
    graph: Graph | str | Path,
    hardware: Hardware | str,
    gpus: int | str,
    options: Options | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    progress: Progress | None = None,
    **choices: Any,
) -> Frontier:
    """Returns the frontier of a graph on a number of GPUs, or on several kinds of devices such as
    `v100=2,1080ti=4`.

    `graph` is a `Graph`, a preset, a file or `shipped:NAME`. Except for a `Graph`, `batch` and
    `seq` set the samples of a step and the tokens of a sample, by default as captured. `hardware`
    is a `Hardware`, a built-in name or a file. `choices` are fields of `Options` (`zero=(0,)`,
    `recompute="auto"`). `stages` are the pipeline stage counts to search too, None for all that are
    possible (docs/pipelines.md). Raises the errors of `shardwise.answers.frontier`.
    """
    given = _options(options, choices)
    answer = advice.frontier(
        _graph(graph, batch, seq),
        _hardware(hardware),
        gpus,
        given,
        progress,
        stages=stages,
        schedules=schedules,
    )
    return _with_views(answer, Frontier)


def curve(
    graph: Graph | str | Path,
    hardware: Hardware | str,
    max_gpus: int | None = None,
    options: Options | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    counts: Sequence[int] = (),
    bundles: Sequence[str] = (),
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] | None = None,
    progress: Progress | None = None,
    space: str = ANY,
    known: Iterable[documents.Curve] = (),
    on_point: Callable[[documents.Curve], None] | None = None,
    **choices: Any,
) -> Curve:
    """Returns the shortest time for every GPU count up to `max_gpus` or in `counts`, or for every
    bundle of several kinds of devices.

    `bundles` are texts such as `v100=2,1080ti=4`, or `usual` for the usual ones. Points of `known`
    curves are reused, and `on_point` receives the curve of each count when it is known. `space`
    names a trainer and restricts the search to its strategies. The other arguments are those of
    `frontier`. Raises the errors of `shardwise.answers.curve`.
    """
    ask: Callable[..., documents.Curve]
    ask = partial(advice.curve, stages=stages, schedules=schedules or DEFAULT_SCHEDULES)
    if space != ANY:
        ask = partial(curve_for, trainer=space, stages=stages, schedules=schedules, given=choices)
    answer = ask(
        _graph(graph, batch, seq),
        _hardware(hardware),
        max_gpus,
        _options(options, choices),
        progress,
        counts=counts,
        bundles=bundles,
        known=known,
        on_point=on_point,
    )
    return _with_views(answer, Curve)


def plan(
    graph: Graph | str | Path,
    hardware: Hardware | str,
    gpus: int | str,
    options: Options | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    objective: str = "mini-time",
    point: str | None = None,
    order: str | None = None,
    space: str = ANY,
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] | None = None,
    progress: Progress | None = None,
    **choices: Any,
) -> Plan:
    """Returns the strategy that `objective` picks, or the frontier's point with an id.

    `order` is the order of execution: `program`, `rank` or `auto` (docs/replay.md). If `space`
    names a trainer, the result is the fastest strategy that it can run (docs/trainers.md). With
    pipeline stage counts, None for all that are possible, it is a pipeline, or the plan without one
    if that is as good (docs/pipelines.md). `point` is the id of a frontier's point. The other
    arguments are those of `frontier`. Raises `Infeasible` if nothing fits, `BadInput` for the
    combinations in docs/reference/refusals.md, and the other errors of `shardwise.solve.solve`.
    """
    answer = solve(
        _graph(graph, batch, seq),
        _hardware(hardware),
        gpus,
        objective=objective,
        point=point,
        order=order,
        space=space,
        stages=stages,
        schedules=schedules,
        options=_options(options, choices),
        given=choices,
        progress=progress,
    )
    return _shown(answer)


def quote(
    graph: Graph | str | Path,
    offers: Sequence[Offer] | str | Path | None = None,
    options: Options | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    steps: int | None = None,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    max_instances: int = 16,
    combine: int = 1,
    hardware: Hardware | str | None = None,
    prices: Mapping[str, float] | None = None,
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    progress: Progress | None = None,
    **choices: Any,
) -> Quote:
    """Returns the offers that the job fits on, cheapest first.

    `offers` are `Offer`s, a CSV file or `skypilot?cloud=aws` (docs/how-to/cloud.md), by default the
    built-in catalogue. The other arguments are those of `frontier` and `shardwise.answers.quote`.
    """
    rows: Sequence[Offer]
    rows = read_offers(offers) if offers is None or isinstance(offers, str | Path) else offers
    answer = advice.quote(
        _graph(graph, batch, seq),
        rows,
        steps=steps,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        max_instances=max_instances,
        combine=combine,
        hardware=None if hardware is None else _hardware(hardware),
        prices=prices,
        stages=stages,
        schedules=schedules,
        options=_options(options, choices),
        progress=progress,
    )
    return _with_views(answer, Quote)


def compare(
    graph: Graph | str | Path,
    hardware: Hardware | str,
    gpus: int | str,
    options: Options | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    proposals: int | None = None,
    seed: int = 0,
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    progress: Progress | None = None,
    **choices: Any,
) -> Comparison:
    """Returns the strategies of practitioners and other systems beside ours, on one cost model.

    `proposals` and `seed` set FlexFlow's random search. With `stages`, pipelines are compared too,
    ours under `schedules`. The other arguments are those of `frontier`. Raises the errors of
    `shardwise.peers.compare`.
    """
    answer = compare_systems(
        _graph(graph, batch, seq),
        _hardware(hardware),
        gpus,
        _options(options, choices),
        progress,
        proposals=proposals,
        seed=seed,
        stages=stages,
        schedules=schedules,
    )
    return _with_views(answer, Comparison)


def explain(plan: documents.Plan | Mapping[str, Any]) -> Explanation:
    """Returns how each group of a plan is split, what it costs, and what its stages do."""
    if isinstance(plan, Mapping):
        plan = documents.read(plan, documents.Plan)
    return _shown(plan).explain()


def _shown(plan: documents.Plan) -> Plan:
    return _with_views(plan, Pipeline if plan.piped else WholePlan)


def _graph(graph: Graph | str | Path, batch: int | None, seq: int | None) -> Graph:
    if isinstance(graph, Graph):
        return as_it_is(graph, StepSizes(batch, seq))
    return load_graph(graph, batch=batch, seq=seq)


def _hardware(hardware: Hardware | str) -> Hardware:
    return hardware if isinstance(hardware, Hardware) else load_hardware(hardware)


def _options(options: Options | None, choices: Mapping[str, Any]) -> Options:
    if not choices:
        return options or Options()
    if options is not None:
        raise BadInput(
            "options and single choices exclude each other",
            field=next(iter(choices)),
            expected="either options, or single choices",
        )
    unknown = choices.keys() - Options.__dataclass_fields__.keys()
    if unknown:
        known = ", ".join(sorted(Options.__dataclass_fields__))
        raise BadInput("unknown option", field=min(unknown), expected=known)
    return Options(**choices)


def _with_views(answer: msgspec.Struct, kind: type[A]) -> A:
    """Returns an answer as the class of this module that shows it."""
    return kind(**msgspec.structs.asdict(answer))


def _document(answer: msgspec.Struct) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return document


def _frame(rows: Sequence[msgspec.Struct]) -> Any:
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise BadInput(
            "needs pandas, which is not installed", expected="pip install pandas"
        ) from None
    return pd.DataFrame([msgspec.to_builtins(row) for row in rows])


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    more = f"<p>… {len(rows) - MOST_ROWS} more rows</p>" if len(rows) > MOST_ROWS else ""
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>"
        for row in rows[:MOST_ROWS]
    )
    return (
        f"<table><thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr></thead>"
        f"<tbody>{body}</tbody></table>{more}"
    )
