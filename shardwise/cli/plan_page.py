"""plan: one page of an answer; `shardwise explain` has the tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec import UNSET

from shardwise.answers.expected import expected_text, peak_range, step_range
from shardwise.answers.explain import bound_text, rate_texts, strategy_text, utilisation_text
from shardwise.cli.output import console, note, proven, say
from shardwise.cli.stages_table import stages_table
from shardwise.cost.shares import shares_text
from shardwise.documents import Explanation, Pipeline, Plan, WholePlan, by_form
from shardwise.documents.common import not_searched_text
from shardwise.documents.parallelism import trainer_text
from shardwise.documents.plan import MORE_ROOM
from shardwise.texts import counted, gib, percentages, seconds

MOST_OTHERS = 4
"""Maximum number of other strategies on a page."""

_LABEL = 11
_FASTEST = ("mini-time", "mini-cost")


@dataclass(frozen=True)
class Asked:
    """The query as typed, for the commands that follow from its answer.

    `epsilon` is the requested error, `file` the plan's file; None if not given.
    """

    graph: str
    hardware: str
    gpus: str
    epsilon: float
    file: str | None = None

    def command(self, name: str, options: str) -> str:
        """Returns a command about the same graph and hardware."""
        return f"shardwise {name} {self.graph} --hardware {self.hardware} {options}"


def plan_page(plan: Plan, why: Explanation, asked: Asked) -> None:
    """Prints a plan's strategy, figures and proof, its stages where they are several, what came
    close, and what to do with it."""
    width = console().width
    say(_heading(plan))
    figures = by_form(plan, _figures, _staged_figures)
    searched = not_searched_text(plan.not_searched)
    for name, text in (
        ("searched", searched),
        figures.strategy,
        ("program", plan.program or ""),
        ("trainer", "" if plan.trainer is UNSET else trainer_text(plan.trainer)),
        ("step", figures.step),
        ("expected", expected_text(plan.predicted.expected)),
        ("published", figures.published),
        ("memory", _memory(plan)),
        ("bound by", figures.bound),
        ("proven", "" if searched else figures.proof(asked.epsilon)),
        ("room", next((one.text for one in why.neighbours or () if one.name == MORE_ROOM), "")),
        figures.basis,
    ):
        if text:
            _row(name, text, width)
    by_form(plan, lambda whole: None, _print_stages)
    for place, text in enumerate([*_others(why)][:MOST_OTHERS]):
        line = textwrap.shorten(text, width - _LABEL - 1, placeholder=" …")
        _row("" if place else "next best", line, width)
    for name, command in _commands(plan, asked):
        _row(name, command, width)


def _print_stages(pipeline: Pipeline) -> None:
    stages_table(pipeline)
    note("note: forward, backward and hop are those of one micro-batch")


class _Figures(NamedTuple):
    """What a page says of a plan in each of its written forms; empty texts have no row."""

    strategy: tuple[str, str]
    step: str
    proof: Callable[[float], str]
    basis: tuple[str, str]
    bound: str = ""
    published: str = ""


def _figures(plan: WholePlan) -> _Figures:
    """Returns the figures of a plan of one stage."""
    return _Figures(
        strategy=("strategy", strategy_text(plan.predicted)),
        step=_step(plan),
        proof=partial(_proof, plan),
        basis=("based on", f"compute times {shares_text(plan.predicted.compute_shares)}"),
        bound=_bound(plan),
        published=plan.published or "",
    )


def _staged_figures(pipeline: Pipeline) -> _Figures:
    """Returns the figures of a pipeline."""
    predicted = pipeline.predicted
    schedule = f"{pipeline.schedule}, {pipeline.micro_batches} micro-batches"
    rates = [*rate_texts(predicted), utilisation_text(predicted)]
    return _Figures(
        strategy=("pipeline", f"{_stages(pipeline)}, {schedule}"),
        step=f"{seconds(predicted.step_s)}{step_range(predicted.expected)}; GPUs idle "
        f"{predicted.idle:.1%} of it; {'; '.join(rates)}",
        proof=lambda epsilon: _staged_proof(pipeline),
        basis=("compared", _compared(pipeline)),
    )


def how_to_fit(asked: Asked) -> None:
    """Prints further remedies if nothing fits, before the error that has the missing memory and the
    options that would fit."""
    if asked.gpus.isdecimal():
        more = asked.command("curve", f"--max-gpus {2 * int(asked.gpus)}")
        note(f"note: {more} says how many GPUs are enough")
    note("note: GPUs with more memory may help too (shardwise hardware list)")


def _row(name: str, text: str, width: int) -> None:
    """Prints a line of the page, continued below if it is too long."""
    indent = " " * _LABEL
    wrapped = textwrap.wrap(
        text,
        width - 1,
        initial_indent=f"{name:{_LABEL}}",
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    say("\n".join(wrapped))


def _heading(plan: Plan) -> str:
    where = f"{plan.graph_name} on {plan.bundle or counted(plan.gpus, 'GPU')} of {plan.hardware}"
    nodes = f" ({counted(plan.nodes, 'node')})" if plan.nodes > 1 else ""
    batch = "" if plan.batch_size is None else f", {counted(plan.batch_size, 'sample')} a step"
    return f"{where}{nodes}{batch}"


def _step(plan: WholePlan) -> str:
    predicted = plan.predicted
    exposed_s = predicted.exposed_communication_s
    # Without communication, only the rounding of two sums is left.
    waits = exposed_s > 1e-9 * predicted.replayed_time_s
    waiting = f"{seconds(exposed_s)} of it" if waits else "none of it"
    step = f"{seconds(predicted.replayed_time_s)}{step_range(predicted.expected)}"
    parts = [f"{step}, {waiting} waiting for communication"]
    parts += rate_texts(predicted)
    if predicted.model_flops_utilisation:
        parts.append(utilisation_text(predicted))
    if plan.schedule is not UNSET:
        change = predicted.replayed_time_s / plan.schedule.program_time_s - 1.0
        parts.append(f"operators by upward rank ({change:+.1%} from the program's order)")
    if not plan.overlap:
        parts.append(f"{seconds(predicted.time_s)} with nothing overlapped, which was searched")
    return "; ".join(parts)


def _memory(plan: Plan) -> str:
    predicted, limit = plan.predicted, plan.peak_limit_bytes
    stage = f", in stage {predicted.peak_stage}," if plan.piped else ""
    left = f"{gib(max(limit - predicted.peak_bytes, 0.0))} GiB left"
    # On stages of several kinds `device_memory_bytes` is the least of all.
    device = "" if plan.bundle else f"; the GPU has {gib(plan.device_memory_bytes)} GiB"
    return (
        f"peak {gib(predicted.peak_bytes)} GiB{peak_range(predicted.expected)} per GPU{stage} "
        f"of {gib(limit)} GiB that a step may use ({left}{device})"
    )


def _bound(plan: WholePlan) -> str:
    predicted = plan.predicted
    bound = bound_text(predicted)
    return ". ".join(filter(None, (bound, predicted.to_go_faster or "")))


def _proof(plan: WholePlan, epsilon: float) -> str:
    """Returns what was asked for and what was proven, with a warning where that is far apart."""
    asked = f"asked for {epsilon:.1%}"
    certificate, gap = plan.certificate, plan.predicted.gap
    if not plan.overlap:
        return f"of the sums: {proven(certificate)}; {asked}"
    if plan.objective not in _FASTEST:
        bound = certificate.time_lower_bound_s
        text = "nothing of this objective"
        if bound is not UNSET:
            text += f"; no strategy that fits takes less than {seconds(bound)}"
        return text
    if gap is None:
        return f"nothing: a faster strategy that fits may exist; {asked}"
    saved = 1.0 - 1.0 / (1.0 + gap)
    saved_text, asked_text = percentages(saved, epsilon)
    order = "" if plan.schedule is UNSET else " in the program's order"
    text = (
        f"no strategy that fits saves more than {saved_text} of the step{order}; "
        f"asked for {asked_text}"
    )
    if certificate.status == "cancelled":
        return f"{text}. WARNING: the search was interrupted"
    if saved <= epsilon:
        return text
    if plan.trainer is not UNSET:
        return f"{text}. WARNING: further than asked; the bound is that of strategies of any kind"
    return (
        f"{text}. WARNING: further than asked: a faster strategy may exist, or the bound is loose "
        "(docs/certificates.md)"
    )


def _stages(pipeline: Pipeline) -> str:
    """Returns `4 stages of 2 GPUs`, or `8 stages, 2 on each of 4 times 2 GPUs`."""
    stages, gpus = len(pipeline.stages), counted(pipeline.stages[0].devices, "GPU")
    if pipeline.stages_per_rank is UNSET:
        return f"{stages} stages of {gpus}"
    return f"{stages} stages, {pipeline.stages_per_rank} on each of {pipeline.ranks} times {gpus}"


def _staged_proof(pipeline: Pipeline) -> str:
    """Returns what is proven of the step."""
    gap = pipeline.certificate.epsilon
    if gap is None:
        return "nothing: a faster strategy may exist"
    return f"no pipeline that was asked for saves more than {1 - 1 / (1 + gap):.1%} of the step"


def _compared(pipeline: Pipeline) -> str:
    """Returns how the step compares to the best without a pipeline."""
    single = pipeline.without_pipeline
    if single is UNSET:
        return (
            "with nothing: --stages auto, or 1 among the numbers, also searches without, unless a "
            "pin is about stages"
        )
    if single is None:
        return "without a pipeline nothing fits"
    gain = 1.0 - pipeline.predicted.step_s / single.step_s
    return (
        f"{gain:.1%} shorter than without a pipeline: {seconds(single.step_s)}, "
        f"{gib(single.peak_bytes)} GiB ({single.label})"
    )


def _others(why: Explanation) -> Iterator[str]:
    """Yields other strategies, each with the reason why it was not taken."""
    for one in sorted(why.neighbours or [], key=lambda n: (not n.fits, n.replayed_time_s)):
        if one.name != MORE_ROOM:
            yield one.text


def _commands(plan: Plan, asked: Asked) -> Iterator[tuple[str, str]]:
    """Yields the next commands: the tables, the trainer's file, a run."""
    file = "plan.json" if asked.file is None else asked.file
    if asked.file is None:
        yield "to keep it", "the same command with -o plan.json; then"
    yield "explain", f"shardwise explain {file}"
    if plan.trainer is not UNSET:
        yield "export", f"shardwise export {file} --to {plan.trainer.name}"
        return
    yield "run", f"shardwise run {file} --graph {asked.graph}"
    if plan.cluster is UNSET and plan.overlap and not plan.piped:
        to = "add --space torchtitan (megatron, deepspeed, …) to the command"
        yield "export", f"for a trainer {to}; then shardwise export {file} --to torchtitan"
