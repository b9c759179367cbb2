"""docs/accuracy.md and its rows, made of about.md, the published rows and the stored predictions.

docs/accuracy.md is the summary: errors by GPU, and grids of strategies. What explains them, the
rows and the sources are a page of the reference, which `make docs` writes and nobody commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, median

from shardwise.answers.expected import (
    LEAST_PROJECTS,
    LEAST_STEPS,
    PEAK,
    TIME,
    factors,
    gpu_of,
)
from shardwise.cost.software import FRAMEWORKS
from shardwise.hardware import load_hardware
from shardwise.sharding.recipes import RECIPES
from tools.expected_errors import held_out, shares

from .fits import Fitted, LeftOut, fit_framework, kinds, leave_one_out, profile_clock, refit
from .ranking import Ranking, rankings
from .reading import Published
from .run import Run
from .stored import Result, included
from .summary import summary
from .tables import bytes_of, percent, seconds, table

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
ABOUT = Path(__file__).with_name("about.md")

FAR_OFF = 0.4
"""The size of an error that is listed."""


def _one_stage(run: Run) -> bool:
    return run.pipeline_parallel > 1 and run.virtual_stages == 1


KINDS: tuple[tuple[str, Callable[[Run], bool]], ...] = (
    ("V100", lambda run: "v100" in run.hardware),
    ("A100", lambda run: "a100" in run.hardware),
    ("H100", lambda run: "h100" in run.hardware),
    ("B200, GB200", lambda run: "b200" in run.hardware),
    ("B300, GB300", lambda run: "b300" in run.hardware),
    ("16 bits or more", lambda run: run.precision not in RECIPES),
    ("8 bits", lambda run: run.precision.startswith("fp8")),
    ("4 bits", lambda run: run.precision == "nvfp4"),
    ("convolutions", lambda run: run.capture.startswith("timm:")),
    ("one GPU", lambda run: run.gpus == 1),
    ("data parallel", lambda run: run.tensor_parallel == 1 and run.zero == 0 and run.gpus > 1),
    ("optimizer state sharded (ZeRO 1)", lambda run: run.zero == 1),
    ("sharded (ZeRO 2, 3)", lambda run: run.zero >= 2),
    ("tensor parallel", lambda run: run.tensor_parallel > 1),
    ("experts over devices", lambda run: run.expert_parallel > 1),
    ("positions over devices", lambda run: run.context_parallel > 1),
    ("without a pipeline", lambda run: run.pipeline_parallel == 1),
    ("pipeline, one stage a device", _one_stage),
    ("pipeline, interleaved stages", lambda run: run.virtual_stages > 1),
)


def page(published: Published, results: Sequence[Result]) -> str:
    """Returns the summary's text; `published` are the rows that `results` belong to."""
    runs = len(included(results))
    projects = len({published.project(result.run) for result in included(results)})
    parts = [
        _about()[0],
        f"Every one of the {runs} runs of {projects} projects, what the figures mean, what is off "
        "and why, and all sources: [Published training steps](reference/published-steps.md), "
        "which `make reference` writes.",
        "## By GPU",
        _by_gpu(results),
        "## Strategies in order",
        _rankings(rankings(results)),
    ]
    return _joined(parts)


def rows(published: Published, results: Sequence[Result]) -> str:
    """Returns the text of the page of all rows and sources."""
    parts = [
        "# Published training steps",
        "Every row behind [the summary](../accuracy.md).",
        _from_reference(_about()[1]),
        "## Errors",
        _errors(results),
        _sums(results),
        "## Leave one source out",
        _left_out(results),
        "## Far off",
        _far_off(results),
        "## Every run",
        _runs(results),
        "## Memory of a device",
        _memory(results),
        _memory_rows(results),
        "## Outliers",
        _outliers(results),
        "## Sources",
        _sources(published, results),
    ]
    return _joined(parts)


def _about() -> tuple[str, str]:
    """Returns the introduction of about.md, and its sections."""
    head, heading, sections = ABOUT.read_text("utf-8").partition("\n## ")
    return head.rstrip(), f"{heading.strip()} {sections}".rstrip()


def _from_reference(text: str) -> str:
    """Returns a text of docs/ with its links as seen from docs/reference."""
    return re.sub(r"\]\((?!https?:|#)", "](../", text)


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _by_gpu(results: Sequence[Result]) -> str:
    classes: dict[tuple[str, str], list[Result]] = {}
    for result in included(results):
        pipelined = result.run.pipeline_parallel > 1
        gpu = gpu_of(load_hardware(result.run.hardware).devices[0].kind)
        regime = "pipelines" if pipelined else f"{result.size}, no pipeline"
        classes.setdefault((gpu, regime), []).append(result)
    return "\n\n".join(
        (
            table(
                ("GPU", "regime", "steps", "projects", "median error", "median size", "90 % within",
                 "with a peak", "its median error", "lowest"),
                "llrrrrrrrr",
                [_gpu_row(*key, classes[key]) for key in sorted(classes)],
            ),
            "An answer states the range in which four of five such steps lie "
            "(`predicted.expected`, and behind step and peak), where at least "
            f"{LEAST_STEPS} steps of {LEAST_PROJECTS} projects were compared:",
            table(
                ("GPU", "regime", "figure", "steps", "projects", "lowest", "highest"),
                "lllrrrr",
                [
                    [gpu, "pipelines" if piped else "no pipeline", figure, str(of.steps),
                     str(of.projects), f"{of.low - 1:+.0%}", f"{of.high - 1:+.0%}"]
                    for (gpu, piped, figure), of in factors().items()
                    if not of.few
                ],
            ),
            "These are measured over predicted, with every project of one weight. Of the steps "
            f"of a project that is left out, {_inside(TIME)} (time) and {_inside(PEAK)} (peak) lie "
            "within the ranges of all others (`python -m tools.expected_errors`).",
        )
    )  # fmt: skip


def _inside(figure: str) -> str:
    of_steps, _ = shares(held_out(figure))
    return f"{of_steps:.0%}"


def _gpu_row(gpu: str, regime: str, results: Sequence[Result]) -> list[str]:
    s = summary([r.time_error for r in results])
    peaks = [r.peak_error for r in results if r.peak_error is not None]
    memory = ["–"] * 3
    if peaks:
        memory = [str(len(peaks)), f"{median(peaks):+.1%}", f"{min(peaks):+.1%}"]
    return [
        gpu,
        regime,
        str(s.runs),
        str(len({r.project for r in results})),
        f"{s.median:+.1%}",
        f"{s.median_size:.1%}",
        f"{s.size_90:.1%}",
        *memory,
    ]


def _errors(results: Sequence[Result]) -> str:
    counted = included(results)
    groups: list[tuple[str, list[Result]]] = [("all", counted)]
    groups += [(size, [r for r in counted if r.size == size]) for size in ("small", "large")]
    groups += [(name, [r for r in counted if r.run.framework == name]) for name in FRAMEWORKS]
    groups += [(name, [r for r in counted if belongs(r.run)]) for name, belongs in KINDS]
    projects = dict.fromkeys(r.project for r in counted)
    sources = [(name, [r for r in counted if r.project == name]) for name in projects]
    head = ("runs", "", "median error", "median size", "90 % within", "within 10 %", "within 25 %")
    return "\n\n".join(
        (
            table(head, "lrrrrrr", [_error_row(*group) for group in groups if group[1]]),
            "By source:",
            table(("source", *head[1:]), "lrrrrrr", [_error_row(*source) for source in sources]),
        )
    )


def _error_row(name: str, results: Sequence[Result]) -> list[str]:
    s = summary([r.time_error for r in results])
    return [
        name,
        str(s.runs),
        f"{s.median:+.1%}",
        f"{s.median_size:.1%}",
        f"{s.size_90:.1%}",
        f"{s.within_10:.0%}",
        f"{s.within_25:.0%}",
    ]


def _sums(results: Sequence[Result]) -> str:
    s = summary([r.sum_error for r in included(results) if r.run.pipeline_parallel == 1])
    return (
        f"Compute and communication added up, which overlaps nothing and waits for no host, would "
        f"have a median error of {s.median:+.1%}, of its size {s.median_size:.1%} (without "
        f"pipelines)."
    )


def _rankings(found: Sequence[Ranking]) -> str:
    if not found:
        return "No grid has enough runs."
    rows = [
        [
            r.grid,
            str(len(r.ways)),
            "–" if r.correlation is None else f"{r.correlation:.2f}",
            f"{r.regret:.1%}",
            _way(r.fastest),
            _way(r.predicted_fastest),
        ]
        for r in found
    ]
    known = [r.correlation for r in found if r.correlation is not None]
    regrets = [r.regret for r in found]
    best = sum(regret == 0.0 for regret in regrets)
    return "\n\n".join(
        (
            table(
                ("grid", "ways", "Spearman", "regret", "fastest", "predicted fastest"),
                "lrrrll",
                rows,
            ),
            f"Of {len(found)} grids: Spearman {median(known):.2f} in the median, {min(known):.2f} "
            f"at least; regret {median(regrets):.1%} in the median, {mean(regrets):.1%} in the "
            f"mean, {max(regrets):.1%} at most; in {best} grids the fastest way is predicted "
            "fastest.",
        )
    )


def _way(run: Run) -> str:
    words = [f"dp {run.data_parallel}", f"tp {run.tensor_parallel}", *_over(run), *_stages(run)]
    words.append(f"micro-batch {run.micro_batch}")
    if run.zero:
        words.append(f"ZeRO {run.zero}{' in a node' if run.zero_within == 'node' else ''}")
    words += _recomputed(run)
    return ", ".join(words)


def _over(run: Run) -> list[str]:
    """Returns over how many devices positions and experts are, such as `cp 2` and `ep 8`."""
    degrees = (("cp", run.context_parallel), ("ep", run.expert_parallel))
    return [f"{name} {degree}" for name, degree in degrees if degree > 1]


def _stages(run: Run) -> list[str]:
    """Returns `pp 8`, or `pp 8 × 3` of interleaved stages; nothing without a pipeline."""
    if run.pipeline_parallel == 1:
        return []
    each = f" × {run.virtual_stages}" if run.virtual_stages > 1 else ""
    return [f"pp {run.pipeline_parallel}{each}"]


def _memory(results: Sequence[Result]) -> str:
    known = [r for r in included(results) if r.run.memory_bytes is not None]
    if not known:
        return "No run has published memory."
    kinds_of_memory = dict.fromkeys(r.run.memory_kind for r in known)
    short = [_memory_row(kind, [r for r in known if r.run.memory_kind == kind]) for kind in
             kinds_of_memory]  # fmt: skip
    return table(
        ("published memory is", "runs", "peak: median error", "size", "lowest",
         "kept: median error", "size", "lowest"),
        "lrrrrrrr",
        [_memory_row("all", known), *short],
    )  # fmt: skip


def _memory_rows(results: Sequence[Result]) -> str:
    return table(
        ("run", "published is", "published GiB", "peak GiB", "error", "kept GiB", "error"),
        "llrrrrr",
        [
            [
                r.run.name,
                r.run.memory_kind,
                bytes_of(r.run.memory_bytes),
                bytes_of(r.stored.peak_bytes),
                percent(r.peak_error),
                bytes_of(r.stored.kept_bytes),
                percent(r.memory_error),
            ]
            for r in included(results)
            if r.run.memory_bytes is not None
        ],
    )


def _memory_row(name: str, results: Sequence[Result]) -> list[str]:
    cells = [name, str(len(results))]
    for errors in ([r.peak_error for r in results], [r.memory_error for r in results]):
        known = [error for error in errors if error is not None]
        s = summary(known)
        cells += [f"{s.median:+.1%}", f"{s.median_size:.1%}", f"{min(known):+.1%}"]
    return cells


def _left_out(results: Sequence[Result]) -> str:
    results = [result for result in results if result.run.is_fitted]
    left = leave_one_out(results)
    everything = refit(results)
    clocked = [kind for kind in kinds(results) if kind in everything.clocks]
    head = ["without", "operator µs", "collective µs", *(f"clock {kind}" for kind in clocked)]
    head += ["runs", "median error", "median size", "as they are: median error", "median size"]
    rows = [
        ["no source", *_numbers(everything, clocked), *["–"] * 5],
        *(_left_row(item, clocked) for item in left),
    ]
    return "\n\n".join(
        (
            "Fitted are the host's time for an operator and for a collective (profiles, `host`), "
            "to small runs; the share of their clocks that devices sustain in large products "
            "(`sustained_clock`), to large runs on each kind of device; and the frameworks' "
            "shares of the host's time, to small runs under each. Here they are fitted again, "
            "without each source, so that the median of |ln(predicted / published)| is least, "
            "and the source's errors are those under the numbers that it had no part in.",
            table(head, "l" + "r" * (len(head) - 1), rows),
            _profile_numbers(results, clocked),
            _frameworks(results, left),
        )
    )


def _numbers(fitted: Fitted, clocked: Sequence[str]) -> list[str]:
    host = fitted.host
    cells = ["–", "–"] if host is None else [
        f"{host.operator_s * 1e6:.0f}", f"{host.collective_s * 1e6:.0f}"
    ]  # fmt: skip
    return cells + [f"{fitted.clocks[k]:.2f}" if k in fitted.clocks else "–" for k in clocked]


def _left_row(item: LeftOut, clocked: Sequence[str]) -> list[str]:
    after, before = item.after, item.before
    return [
        item.project,
        *_numbers(item.fitted, clocked),
        str(after.runs),
        f"{after.median:+.1%}",
        f"{after.median_size:.1%}",
        f"{before.median:+.1%}",
        f"{before.median_size:.1%}",
    ]


def _profile_numbers(results: Sequence[Result], clocked: Sequence[str]) -> str:
    if not clocked:
        return (
            "No profile has measured products, so that no clock is fitted (`sustained_clock` is 1)."
        )
    known = ", ".join(f"{kind} {profile_clock(kind, results):.2f}" for kind in clocked)
    return f"The clocks in the profiles: {known}."


def _frameworks(results: Sequence[Result], left: Sequence[LeftOut]) -> str:
    rows = []
    for name, known in FRAMEWORKS.items():
        small = [r for r in included(results) if r.run.framework == name and r.size == "small"]
        whole = fit_framework(included(results), name)
        if whole is None:
            continue
        sources = dict.fromkeys(r.project for r in small)
        for project in sources:
            item = next(item for item in left if item.project == project)
            again = item.fitted.frameworks.get(name)
            rows.append(
                [
                    name,
                    f"{known.operator:g}",
                    f"{whole.operator:.2g}",
                    project,
                    str(sum(r.project == project for r in small)),
                    "–" if again is None else f"{again.operator:.2g}",
                ]
            )
    if not rows:
        return ""
    return "\n\n".join(
        (
            "The share of a host's eager time that a framework takes of an operator, fitted to "
            "small runs; without a source it cannot be fitted where no other one has enough of "
            "them:",
            table(
                ("framework", "in use", "fitted", "without", "small runs of it", "fitted then"),
                "lrrlrr",
                rows,
            ),
        )
    )


def _far_off(results: Sequence[Result]) -> str:
    far = sorted(
        (r for r in included(results) if abs(r.time_error) > FAR_OFF),
        key=lambda r: -abs(r.time_error),
    )
    if not far:
        return f"No run is off by more than {FAR_OFF:.0%}."
    rows = [[r.run.name, percent(r.time_error), r.size, r.run.framework, r.run.note] for r in far]
    return "\n\n".join(
        (
            f"{len(far)} runs are off by more than {FAR_OFF:.0%}, with what their rows take for "
            "granted:",
            table(("run", "error", "size", "framework", "note"), "lrlll", rows),
        )
    )


def _runs(results: Sequence[Result]) -> str:
    return table(
        ("run", "GPUs", "how", "published s", "predicted s", "error", "devices s", "host s"),
        "lrlrrrrr",
        [
            [
                r.run.name,
                str(r.run.gpus),
                _how(r.run),
                seconds(r.run.iteration_s),
                seconds(r.stored.time_s),
                percent(r.time_error) + (" (outlier)" if r.run.outlier else ""),
                seconds(r.stored.device_s),
                seconds(r.stored.host_s),
            ]
            for r in results
        ],
    )


def _how(run: Run) -> str:
    """The parallelism in a few words."""
    words = [f"batch {run.batch:,}"]
    if run.data_parallel > 1:
        words.append(f"dp {run.data_parallel}")
    if run.tensor_parallel > 1:
        words.append(f"tp {run.tensor_parallel}{' sp' if run.sequence_parallel else ''}")
    words += [*_over(run), *_stages(run)]
    if run.zero:
        words.append(f"ZeRO {run.zero}{' in a node' if run.zero_within == 'node' else ''}")
    words += _recomputed(run)
    if run.micro_batches > 1:
        words.append(f"{run.micro_batches} micro-batches")
    if run.framework != "eager":
        words.append(run.framework)
    if run.precision in RECIPES:
        words.append(run.precision)
    return ", ".join(words)


def _recomputed(run: Run) -> list[str]:
    what = " and ".join(run.recompute_modules) or run.recompute
    share = "" if run.recompute_share == 1.0 else f" {run.recompute_share:g}"
    return [] if what == "none" else [f"recompute {what}{share}"]


def _outliers(results: Sequence[Result]) -> str:
    return "\n".join(f"- {r.run.name}: {r.run.outlier}." for r in results if r.run.outlier)


def _sources(published: Published, results: Iterable[Result]) -> str:
    runs = [result.run for result in results]
    lines = []
    for source in published.sources.values():
        own = sum(run.source == source.key for run in runs)
        configured = sum(source.key in run.also for run in runs)
        counts = [f"{own} runs"] if own else []
        counts += [f"configuration of {configured} runs"] if configured else []
        if counts:
            lines.append(
                f"- [{source.title}]({source.address}) ({source.version}): {', '.join(counts)}"
            )
    return "\n".join(lines)
