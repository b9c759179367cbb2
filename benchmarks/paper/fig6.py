"""TensorOpt Fig. 6: frontiers on 16 GPUs, and the other systems on the same cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paper import draw
from paper.result import Claim, Result, Table
from paper.setting import GIB, GPUS, PAPER, compute_s, frontier, parallel, tofu_points
from shardwise.cost.options import quiet
from shardwise.peers.evaluate import Point
from shardwise.peers.mesh_tensorflow import mesh_tensorflow
from shardwise.search.search import Search
from shardwise.search.turning_point import turning_point

MODELS = ("rnn", "wide-resnet", "transformer")
THEIR_RNN_PARALLEL = (109.0, 39.0)
NEAR_S = 1.02
SAME = 1.01
"""Frontiers are within 1 % of the best of their space: what is nearer than that is alike."""


@dataclass(frozen=True)
class Panel:
    """One model: our frontier and the peers' points."""

    model: str
    search: Search
    mesh: tuple[Point, ...]
    parallel: Point
    tofu_unsharded: Point
    tofu: Point

    @property
    def knee(self) -> int:
        point = turning_point(self.search.memory_bytes, self.search.time_s)
        assert point is not None
        return point


def panel(model: str) -> Panel:
    """All strategies of a model."""
    search = frontier(model)
    mesh = mesh_tensorflow(search.problem, PAPER, quiet)
    return Panel(model, search, mesh.points, parallel(search), *tofu_points(model, GPUS))


def make() -> Result:
    result = Result("fig6", "TensorOpt Fig. 6: frontiers on 16 GPUs")
    panels = [panel(model) for model in MODELS]
    result.pictures.append(draw.save("fig6", len(panels), lambda axes: _draw(axes, panels)))
    result.tables.append(Table(_HEADERS, [_row(p) for p in panels]))
    for p in panels:
        result.claims += claims(p)
    rnn = panels[0].parallel
    result.claims.append(
        Claim(
            f"rnn: data parallelism takes {THEIR_RNN_PARALLEL[0]:g} GB and "
            f"{THEIR_RNN_PARALLEL[1]:g} s",
            abs(rnn.memory_bytes / GIB / THEIR_RNN_PARALLEL[0] - 1) < 0.15
            and abs(rnn.time_s / THEIR_RNN_PARALLEL[1] - 1) < 0.15,
            f"{rnn.memory_bytes / GIB:.0f} GiB and {rnn.time_s:.0f} s",
        )
    )
    result.data = {p.model: _data(p) for p in panels}
    return result


_HEADERS = (
    "GiB per GPU, s per iteration",
    "least memory",
    "turning point",
    "shortest (OptCNN)",
    "Mesh-TensorFlow, least memory",
    "Mesh-TensorFlow, shortest",
    "data parallel",
    "Tofu, whole parameters",
    "Tofu",
)


def _row(p: Panel) -> tuple[str, ...]:
    memory, time = p.search.memory_bytes, p.search.time_s
    ours = [(memory[i], time[i]) for i in (0, p.knee, -1)]
    others = [
        (point.memory_bytes, point.time_s)
        for point in (p.mesh[0], p.mesh[-1], p.parallel, p.tofu_unsharded, p.tofu)
    ]
    return (p.model, *(f"{m / GIB:.2f}, {t:.2f}" for m, t in (*ours, *others)))


def claims(p: Panel) -> list[Claim]:
    """What §5.1 says of every model."""
    memory, time = p.search.memory_bytes, p.search.time_s
    compute = compute_s(p.search)
    network = time - compute
    below = (time[0] - time[p.knee]) / (memory[p.knee] - memory[0])
    above = (time[p.knee] - time[-1]) / (memory[-1] - memory[p.knee])
    tofu_memory = p.tofu.memory_bytes / memory[0]
    shape = [
        Claim(
            f"{p.model}: computation remains stable, network time falls as memory grows",
            bool(compute.max() / compute.min() < 1.1 and network[0] > 1.5 * network[-1]),
            f"computation {compute.min():.2f} to {compute.max():.2f} s, "
            f"network {network[0]:.2f} to {network[-1]:.2f} s",
        ),
        Claim(
            f"{p.model}: a sharp turning point",
            bool(below > 5 * above),
            f"a GiB less costs {below * GIB:.2g} s below it, saves {above * GIB:.2g} s above",
        ),
        Claim(
            f"{p.model}: data parallelism has much memory and a long time",
            bool(
                p.parallel.time_s > NEAR_S * time[-1] and p.parallel.memory_bytes > memory[p.knee]
            ),
            f"{p.parallel.time_s / time[-1]:.2f} times our shortest, "
            f"{p.parallel.memory_bytes / memory[p.knee]:.1f} times the turning point's memory",
        ),
        Claim(
            f"{p.model}: Tofu takes little memory and a long time",
            bool(tofu_memory < 1.5 and p.tofu.time_s > 1.1 * time[-1]),
            f"{tofu_memory:.2f} times our least memory, {p.tofu.time_s / time[-1]:.2f} times our "
            "shortest time",
        ),
    ]
    covers = Claim(
        f"{p.model}: no other strategy of this space is below the frontier",
        never_below(p),
        f"certified within {float(p.search.solution.epsilon):.1%}",
    )
    return [*shape, _against_mesh(p), covers]


def never_below(p: Panel) -> bool:
    """Whether no peer in our space has a point that ours does not cover."""
    memory, time = p.search.memory_bytes, p.search.time_s
    return all(
        bool(((memory <= q.memory_bytes * SAME) & (time <= q.time_s * SAME)).any())
        for q in (*p.mesh, p.parallel, p.tofu_unsharded)
    )


def _against_mesh(p: Panel) -> Claim:
    memory, time = p.search.memory_bytes, p.search.time_s
    worse = [
        point.time_s / float(time[np.flatnonzero(memory <= point.memory_bytes * SAME)[-1]])
        for point in p.mesh
    ]
    least = p.mesh[0].memory_bytes / memory[0]
    shortest = p.mesh[-1].time_s / time[-1]
    ours = (
        f"least memory {least:.2f} times ours, shortest time {shortest:.2f} times ours, "
        f"{max(worse):.2f} times ours at the worst"
    )
    if p.model == "wide-resnet":
        statement = "Mesh-TensorFlow's frontier is one point, data parallelism"
        alike = shortest >= SAME and len(p.mesh) == 1
        return Claim(f"{p.model}: {statement}", alike, f"{len(p.mesh)} points; {ours}")
    return Claim(
        f"{p.model}: ours is always below Mesh-TensorFlow's, whose least memory is much higher",
        bool(min(worse) >= 1 / SAME and least > 1.1),
        ours,
    )


def _draw(axes: Any, panels: list[Panel]) -> None:
    for panel_axes, p in zip(axes, panels, strict=True):
        memory, time = p.search.memory_bytes / GIB, p.search.time_s
        compute = compute_s(p.search)
        panel_axes.plot(memory, time, color=draw.OURS, label="Shardwise")
        panel_axes.plot(memory, time - compute, ":", color=draw.OURS, label="its network time")
        panel_axes.plot(memory, compute, ":", color="#64748b", label="its computation")
        mesh = np.array([(q.memory_bytes / GIB, q.time_s) for q in p.mesh])
        style = {"color": draw.MESH, "label": "Mesh-TensorFlow"}
        panel_axes.plot(*mesh.T, "-" if len(mesh) > 1 else "s", **style)
        panel_axes.plot(memory[-1], time[-1], "D", color=draw.OPTCNN, label="OptCNN")
        panel_axes.plot(
            p.tofu.memory_bytes / GIB, p.tofu.time_s, "^", color=draw.TOFU, label="Tofu"
        )
        at = p.tofu_unsharded.memory_bytes / GIB, p.tofu_unsharded.time_s
        panel_axes.plot(*at, "^", mfc="none", color=draw.TOFU, label="Tofu, whole parameters")
        if p.model != "rnn":  # as in the paper: it is far outside
            at = p.parallel.memory_bytes / GIB, p.parallel.time_s
            panel_axes.plot(*at, "o", color=draw.PARALLEL, label="data parallel")
        panel_axes.plot(memory[p.knee], time[p.knee], "*", ms=11, color=draw.OURS)
        panel_axes.set_title(p.model, fontsize=10)
        panel_axes.set_xlabel("memory per GPU, GiB")
        panel_axes.set_ylim(bottom=0)
    axes[0].set_ylabel("iteration, s")
    handles, labels = axes[-1].get_legend_handles_labels()
    place = {"loc": "outside lower center", "ncols": len(labels)}
    axes[0].figure.legend(handles, labels, frameon=False, fontsize=8, **place)


def _data(p: Panel) -> dict[str, Any]:
    compute = compute_s(p.search)
    return {
        "memory_bytes": p.search.memory_bytes.tolist(),
        "time_s": p.search.time_s.tolist(),
        "compute_s": compute.tolist(),
        "turning_point": p.knee,
        "epsilon": float(p.search.solution.epsilon),
        **{
            name: [[q.memory_bytes, q.time_s] for q in points]
            for name, points in (
                ("mesh_tensorflow", p.mesh),
                ("data_parallel", (p.parallel,)),
                ("tofu", (p.tofu,)),
                ("tofu_whole_parameters", (p.tofu_unsharded,)),
            )
        },
    }
