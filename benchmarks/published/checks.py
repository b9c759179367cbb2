"""What has to hold of a run for it to be predicted and to be what its source says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from shardwise.cost.options import MOMENTS
from shardwise.cost.software import FRAMEWORKS, KERNELS, RERUNS
from shardwise.cost.step_settings import (
    ACCUMULATIONS,
    GRADIENTS,
    STATE_BITS,
    STATES,
    UPDATES,
    WEIGHTS,
)
from shardwise.documents.parallelism import ContextForm
from shardwise.errors import BadInput
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.replay.stages import FEWEST
from shardwise.sharding.fusion import LOSS
from shardwise.sharding.precision import PRECISIONS

from .run import MEMORY_UNITS, RECOMPUTE, UNITS, ZERO_WITHIN, Run, Source

CHOICES: Mapping[str, tuple[str, ...]] = {
    "unit": UNITS,
    "memory_unit": tuple(MEMORY_UNITS),
    "recompute": RECOMPUTE,
    "zero_within": ZERO_WITHIN,
    "framework": tuple(FRAMEWORKS),
    "kernels": ("", *KERNELS),
    "loss": ("", *LOSS),
    "rerun": ("", *RERUNS),
    "optimizer": tuple(MOMENTS),
    "dtype": tuple(DTYPE_BYTES),
    "gradients": GRADIENTS,
    "accumulation": ACCUMULATIONS,
    "update": UPDATES,
    "weights": WEIGHTS,
    "precision": tuple(PRECISIONS),
    "context_form": get_args(ContextForm),
}
ABOVE_ZERO = (
    *("figure", "batch", "gpus", "micro_batches", "data_parallel", "tensor_parallel"),
    *("pipeline_parallel", "virtual_stages", "expert_parallel", "context_parallel"),
)
AT_LEAST_ZERO = (*("seq", "parameters", "network_gbps", "per_node", "expert_tensor_parallel"),)
TEXTS = ("name", "capture", "hardware", "note", "quote")
UNIT_SUFFIXES = ("ms", "s", "GiB", "GB", "MiB", "MB")


def check(run: Run, sources: Mapping[str, Source], file: str) -> None:
    """Raises `BadInput` naming the file, the run and the field of what does not hold."""

    def demand(holds: bool, field: str, problem: str, expected: str) -> None:
        if not holds:
            raise BadInput(problem, file=file, field=f"run {run.name}: {field}", expected=expected)

    for key in (run.source, *run.also):
        demand(key in sources, "source", f"no source {key!r}", ", ".join(sources))
    for field, known in CHOICES.items():
        value = getattr(run, field)
        demand(value in known, field, f"unknown {field} {value!r}", ", ".join(filter(None, known)))
    demand(
        run.state in STATES or bool(re.fullmatch(STATE_BITS, run.state)),
        "state",
        f"unknown state {run.state!r}",
        f"{', '.join(STATES)}, or bits of copy and moments",
    )
    for field in ABOVE_ZERO:
        demand(getattr(run, field) > 0, field, f"{getattr(run, field)}", "a number above 0")
    for field in AT_LEAST_ZERO:
        demand(getattr(run, field) >= 0, field, f"{getattr(run, field)}", "at least 0")
    for field in TEXTS:
        demand(bool(getattr(run, field).strip()), field, "nothing is said", "a text")
    demand(run.zero in (0, 1, 2, 3), "zero", f"{run.zero}", "0, 1, 2 or 3")
    demand(
        0.0 < run.recompute_share <= 1.0,
        "recompute_share",
        f"{run.recompute_share:g}",
        "a share of the layers above 0, at most 1",
    )
    demand(
        run.recompute == "full" or run.recompute_share == 1.0,
        "recompute_share",
        f"a share of the layers of recompute {run.recompute!r}",
        'recompute = "full"',
    )
    of_stage = run.data_parallel * run.tensor_parallel * run.context_parallel
    ranks = of_stage * run.pipeline_parallel
    context = f", {run.context_parallel} context-parallel" if run.context_parallel > 1 else ""
    demand(
        ranks == run.gpus,
        "gpus",
        f"{run.gpus} GPUs for {run.data_parallel} data-parallel times "
        f"{run.tensor_parallel} tensor-parallel{context} and {run.pipeline_parallel} pipeline "
        "ranks",
        f"{ranks}",
    )
    demand(
        of_stage % run.expert_devices == 0,
        "expert_parallel",
        f"all experts are on {run.expert_devices} devices",
        f"a divisor of {of_stage}",
    )
    demand(
        not run.end_layers or (len(run.end_layers) == 2 and run.pipeline_parallel > 1),
        "end_layers",
        f"got {list(run.end_layers)}",
        "the layers of the first and of the last stage of a pipeline",
    )
    demand(
        not run.as_trained or run.recompute in ("none", "full"),
        "recompute",
        f"recompute {run.recompute!r} where experts or positions are divided",
        "none, full",
    )
    demand(
        not run.recompute_modules or (run.as_trained and run.recompute == "none"),
        "recompute_modules",
        f"parts of layers, recompute {run.recompute!r}",
        "experts or positions that are divided, and no other recomputation",
    )
    demand(
        run.pipeline_parallel > 1 or run.virtual_stages == 1,
        "virtual_stages",
        "interleaved stages without a pipeline",
        "pipeline_parallel above 1",
    )
    demand(
        run.pipeline_parallel == 1 or run.micro_batches >= FEWEST,
        "micro_batches",
        f"{run.micro_batches} micro-batches in a pipeline",
        f"at least {FEWEST}, of which the period is told",
    )
    share = run.data_parallel * run.micro_batches
    demand(
        run.batch % share == 0,
        "batch",
        f"{run.batch} samples are not the same number for every rank and micro-batch",
        f"a multiple of {share}",
    )
    demand(
        run.seq > 0 or not run.unit.startswith("tokens"),
        "seq",
        f"no sequence length for {run.unit}",
        "tokens of a sequence",
    )
    demand(
        run.tensor_parallel > 1 or not run.sequence_parallel,
        "sequence_parallel",
        "sequence parallelism without tensor parallelism",
        "tensor_parallel above 1",
    )
    demand(
        run.sequence_parallel or not run.gathers_again,
        "gathers_again",
        "nothing is gathered without sequence parallelism",
        "sequence_parallel = true",
    )
    for field, figures in (("figure", (run.figure,)), ("memory_figures", run.memory_figures)):
        for figure in figures:
            demand(
                is_quoted(figure, run.quote),
                field,
                f"{figure:.10g} is not in the quote",
                "a figure of the quote",
            )
    demand(
        bool(run.memory_figures) == bool(run.memory_kind),
        "memory_kind",
        "memory figures and what they are belong together",
        "both or neither",
    )


def is_quoted(figure: float, quote: str) -> bool:
    """Returns whether a quote contains a figure as a whole number, with or without its unit.

    6,667 and 6667.0 are alike; of 74/80 both are.
    """
    wanted = f"{figure:.10g}"
    apart = quote.replace("/", " ")
    for word in apart.replace(",", " ").split() + apart.replace(",", "").split():
        text = word.strip("|:;()[]{}'\"*")
        for suffix in UNIT_SUFFIXES:
            if text.endswith(suffix):
                text = text[: -len(suffix)]
                break
        try:
            if f"{float(text):.10g}" == wanted:
                return True
        except ValueError:
            continue
    return False
