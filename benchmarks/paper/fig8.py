"""TensorOpt Fig. 8: the shortest iteration time for every number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paper import draw
from paper.models import graph
from paper.result import Claim, Result, Table
from paper.setting import GIB, NO_LIMIT, cluster, fastest, parallel, tofu_points
from paper.table1 import all_outputs_gib, parameter_gib

GPUS = (2, 4, 8, 16, 32)
MODELS = ("wide-resnet", "transformer")


@dataclass(frozen=True)
class Count:
    """Seconds on one number of GPUs by system; None where nothing fits.

    `every_result_gib` is data parallelism's memory if every operator's result were kept.
    """

    gpus: int
    ours: float | None
    optcnn: float | None
    parallel: float | None
    tofu: float | None
    tofu_s: float
    optcnn_gib: float
    parallel_gib: float
    every_result_gib: float


def count(model: str, gpus: int) -> Count:
    """All systems on `gpus` devices, under what one V100 may use."""
    search = fastest(model, gpus)
    chosen = search.fastest_within(search.limit_bytes)
    free = fastest(model, gpus, limit_bytes=NO_LIMIT)
    limit, parameters = search.limit_bytes, parameter_gib(graph(model))
    data, tofu = parallel(search), tofu_points(model, gpus)[1]
    return Count(
        gpus,
        None if chosen is None else float(search.time_s[chosen]),
        float(free.time_s[-1]) if free.memory_bytes[-1] <= limit else None,
        data.time_s if data.memory_bytes <= limit else None,
        tofu.time_s if tofu.memory_bytes <= limit else None,
        tofu.time_s,
        float(free.memory_bytes[-1]) / GIB,
        data.memory_bytes / GIB,
        parameters + (all_outputs_gib(graph(model)) - parameters) / gpus,
    )


def make() -> Result:
    result = Result("fig8", "TensorOpt Fig. 8: GPUs and the shortest iteration time")
    curves = {model: [count(model, gpus) for gpus in GPUS] for model in MODELS}
    result.pictures.append(draw.save("fig8", 2, lambda axes: _draw(axes, curves)))
    systems = ("ours", "optcnn", "parallel", "tofu")
    rows = [
        (model, name, *(_cell(getattr(c, system)) for c in curve))
        for model, curve in curves.items()
        for system, name in zip(systems, ("ours", "OptCNN", "data parallel", "Tofu"), strict=True)
    ]
    result.tables.append(Table(("", "s per iteration on", *(f"{g} GPUs" for g in GPUS)), rows))
    for model, curve in curves.items():
        result.claims += claims(model, {c.gpus: c for c in curve})
    result.data = {model: [vars(c) for c in curve] for model, curve in curves.items()}
    result.data["limit_gib"] = cluster().devices[0].memory_bytes / 1.1 / GIB
    return result


def _cell(seconds: float | None) -> str:
    return "does not fit" if seconds is None else f"{seconds:.2f}"


def claims(model: str, curve: dict[int, Count]) -> list[Claim]:
    """What §5.1 says of the curves."""
    eight, sixteen = curve[8], curve[16]
    gained = None if None in (eight.ours, sixteen.ours) else eight.ours / sixteen.ours
    return [
        Claim(
            f"{model}: on 8 GPUs ours fits, data parallelism and OptCNN do not",
            eight.ours is not None and eight.parallel is None and eight.optcnn is None,
            f"ours {_cell(eight.ours)}; data parallel {_cell(eight.parallel)}, "
            f"{eight.parallel_gib:.1f} GiB ({eight.every_result_gib:.1f} with every result kept); "
            f"OptCNN {_cell(eight.optcnn)}, {eight.optcnn_gib:.1f} GiB",
        ),
        Claim(
            f"{model}: on 16 GPUs they fit",
            sixteen.parallel is not None and sixteen.optcnn is not None,
            f"data parallel {_cell(sixteen.parallel)}, OptCNN {_cell(sixteen.optcnn)}",
        ),
        Claim(
            f"{model}: 16 GPUs are only marginally faster than 8",
            gained is not None and 1.0 <= gained < 1.5,
            "does not fit" if gained is None else f"{gained:.2f} times as fast",
        ),
        Claim(
            f"{model}: Tofu is slower on 16 GPUs than on 8",
            sixteen.tofu_s > eight.tofu_s,
            f"{eight.tofu_s:.2f} s and {sixteen.tofu_s:.2f} s",
        ),
    ]


def _draw(axes: Any, curves: dict[str, list[Count]]) -> None:
    styles = (
        ("ours", "Shardwise", "o-", draw.OURS),
        ("optcnn", "OptCNN", "D--", draw.OPTCNN),
        ("parallel", "data parallel", "s--", draw.PARALLEL),
        ("tofu", "Tofu", "^--", draw.TOFU),
    )
    for panel, (model, curve) in zip(axes, curves.items(), strict=True):
        for system, label, style, colour in styles:
            points = [(c.gpus, getattr(c, system)) for c in curve]
            shown = [(g, s) for g, s in points if s is not None]
            if shown:
                wide = {"lw": 5, "ms": 9, "alpha": 0.4} if system == "ours" else {"ms": 5}
                panel.plot(*zip(*shown, strict=True), style, color=colour, label=label, **wide)
        panel.set_xscale("log", base=2)
        panel.set_xticks(GPUS, labels=[str(g) for g in GPUS])
        panel.set_xlabel("GPUs")
        panel.set_ylim(bottom=0)
        panel.set_title(model, fontsize=10)
    axes[0].set_ylabel("iteration, s")
    axes[-1].legend(frameon=False, fontsize=8)
