"""Megatron-LM: how many layers each stage of a pipeline has, as the flags say it.

A layout (Megatron's `PipelineParallelLayerLayout`) names what every stage has:
`E` the embedding, `t` a layer, `L` the loss, `m` a layer that predicts further tokens, stages
between `|`; `t*3` and `(tt|)*4` are repeated, commas are for the eye.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shardwise.errors import BadInput
from shardwise.trainers.configuration import divided
from shardwise.trainers.megatron_flags import MegatronFlags

LAYERS_OF_STAGE = "num-layers-per-virtual-pipeline-stage"
VIRTUAL = (
    LAYERS_OF_STAGE,
    "num-virtual-stages-per-pipeline-rank",
    "virtual-pipeline-model-parallel-size",
)
"""Flags that interleave stages."""

LAYOUT = "pipeline-model-parallel-layout"
OF_ENDS = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
COUNTED = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
UNEQUAL_STAGES = (LAYOUT, *OF_ENDS, *COUNTED)
"""Flags that give stages unequal layers: a layout of all, the layers of the first and of the last
rank, and whether embedding and loss count as a layer each."""

_EXPRESSIBLE = "stages of equal layers, but for the first and the last one"
_REPEATED = (re.compile(r"\(([^()]+)\)\*([0-9]{1,3})"), re.compile(r"([^()])\*([0-9]{1,3})"))
_LONGEST = 4096
"""Letters of a layout with its repetitions put in."""


class Stages(NamedTuple):
    """How a pipeline is cut: stages of each rank, or the layers of each, and those of the first and
    the last stage where they differ."""

    each: int = 1
    layers: int | None = None
    ends: tuple[int, int] | None = None


def stages_of(flags: MegatronFlags, ranks: int) -> Stages:
    """Returns how the flags cut a model into the stages of a pipeline.

    Raises `BadInput` for flags that contradict each other, where layers do not divide so, and for
    a layout whose stages have other numbers of layers than the first and the last one alone.
    """
    if ranks > 1 and LAYOUT in flags:
        return _laid_out(flags, ranks)
    each, layers = _interleaved(flags, ranks)
    return Stages(each, layers, _ends(flags, ranks, each if layers is None else None))


def _laid_out(flags: MegatronFlags, ranks: int) -> Stages:
    path = flags.path(LAYOUT)
    others = [flag for flag in (*VIRTUAL, *OF_ENDS, *COUNTED) if flag in flags]
    if others:
        raise BadInput(
            f"given beside {path}, which says it for all stages",
            field=flags.path(others[0]),
            expected="one of the two",
        )
    counts = _counts(flags.word(LAYOUT, ""), path)
    each = divided(len(counts), ranks, "stages of the layout", path)
    layers = flags.maybe_number("num-layers")
    if layers is not None and layers != sum(counts):
        raise BadInput(
            f"{sum(counts)} layers in the layout", field=path, expected=f"--num-layers {layers}"
        )
    if len(set(counts)) == 1:
        return Stages(each)
    between = set(counts[1:-1])
    if len(between) > 1 or 0 in between:
        shown = ", ".join(map(str, counts[:8])) + (", …" if len(counts) > 8 else "")
        raise BadInput(
            f"stages of {shown} layers are not priced", field=path, expected=_EXPRESSIBLE
        )
    return Stages(each, None, (counts[0], counts[-1]))


def _counts(layout: str, path: str) -> list[int]:
    """Returns the layers of each stage of a layout; raises `BadInput` for what is none."""
    text = re.sub(r"[\s,]", "", layout)
    for pattern in _REPEATED:
        if sum(len(m[1]) * int(m[2]) for m in pattern.finditer(text)) > _LONGEST:
            raise BadInput("too many stages", field=path, expected=f"at most {_LONGEST} letters")
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    stages = text.split("|")
    if "m" in text:
        raise BadInput(
            "a layer that predicts further tokens (m)",
            field=path,
            expected="none; captured models have no such layers",
        )
    if not re.fullmatch(r"E[t|]*L", text) or len(stages) < 2:
        raise BadInput(
            f"got {layout[:60]!r}",
            field=path,
            expected="stages between |, E in the first and L in the last, such as Ett|ttt|tL",
        )
    return [stage.count("t") for stage in stages]


def _interleaved(flags: MegatronFlags, stages: int) -> tuple[int, int | None]:
    """Returns how many stages each device has, and how many layers a stage has where the flags say
    that instead. Without a pipeline there are no stages to interleave, and the flags say nothing.
    """
    given = [flag for flag in VIRTUAL if flag in flags]
    if len(given) > 1:
        raise BadInput(
            f"given beside {flags.path(given[0])}",
            field=flags.path(given[1]),
            expected="one of the flags that interleave stages",
        )
    if stages == 1 or not given:
        return 1, None
    if given[0] == LAYERS_OF_STAGE:
        return 1, flags.number(LAYERS_OF_STAGE, 1)
    return flags.number(given[0], 1), None


def _ends(flags: MegatronFlags, stages: int, each: int | None) -> tuple[int, int] | None:
    """Returns the layers of the first and of the last stage where flags make these unequal to the
    others, each rank with `each` stages (None: as many as the layers of a stage make).

    Raises `BadInput` for flags that contradict each other, and where layers do not divide so.
    """
    given = [flag for flag in (*OF_ENDS, *COUNTED) if flag in flags]
    if stages == 1 or not given:
        return None
    path, layers = flags.path(given[0]), flags.maybe_number("num-layers")
    only = "the layers of the first and of the last stage alone, one stage on each rank"
    if each is None or (each > 1 and set(given) & set(OF_ENDS)):
        raise BadInput("stages of unequal layers are not priced so", field=path, expected=only)
    if layers is None or (set(given) & set(OF_ENDS) and set(given) & set(COUNTED)):
        raise BadInput(
            "layers of unequal stages", field=path, expected="--num-layers, and one kind of flag"
        )
    counted = [int(flag in given) for flag in COUNTED]
    if any(counted):
        of_stage = divided(layers + sum(counted), stages * each, "layers", path)
        return of_stage - counted[0], of_stage - counted[1]
    ends = [flags.maybe_number(flag) for flag in OF_ENDS]
    of_ends, others = sum(one or 0 for one in ends), stages - sum(one is not None for one in ends)
    of_stage = divided(layers - of_ends, others, "layers", path) if others else 0
    first, last = (of_stage if one is None else one for one in ends)
    return first, last
