"""The pictures of docs/concepts.md, from the product's own answers.

    python benchmarks/docs_pictures.py            # writes docs/pictures/concepts-*.svg

Costs, layouts and frontiers are computed when this runs; nothing is drawn by hand but the boxes of
the service.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, Rectangle

from harness.answers import curve
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.peers import data_parallel, evaluate
from shardwise.search.problem import problem_from_json, solve_problem
from shardwise.search.search import Search, Subject, search
from shardwise.search.turning_point import turning_point
from shardwise.sharding.layout import PARTIAL
from shardwise.sharding.operator_layouts import operator_layouts
from shardwise.tdl import analyse

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
GIB = 2**30
BLUE, ORANGE, GREEN, RED, GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#b0b0b0"
DEVICES = ("#8ecae6", "#ffb703", "#90be6d", "#f28482")
OTHERS = 1500


def main() -> None:
    mpl.rcParams.update({"svg.hashsalt": "shardwise", "font.size": 9})
    for name, draw in (
        ("frontier", frontier_picture),
        ("split", split_picture),
        ("elimination", elimination_picture),
        ("curve", curve_picture),
        ("service", service_picture),
    ):
        figure = draw()
        path = FOLDER / f"concepts-{name}.svg"
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", file=sys.stderr)


def frontier_picture() -> Any:
    """GPT-2 on 8 V100: the frontier, other strategies, data parallelism, the limit."""
    hardware = load_hardware("dgx-v100-16gb")
    options = Options()
    result = search(Subject.of(read_graph(shipped_graph("gpt2"))), hardware, 8, options)
    memory, time = result.memory_bytes / GIB, result.time_s
    knee = turning_point(result.memory_bytes, result.time_s)
    others = np.array(list(_others(result)))
    batch = data_parallel(result)
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(others[:, 0], others[:, 1], ".", color=GREY, markersize=2, rasterized=True,
              label=f"{OTHERS:,} other strategies")  # fmt: skip
    axes.step(memory, time, where="post", color=BLUE, label=f"the frontier, {len(time)} points")
    if knee is not None:
        axes.plot(memory[knee], time[knee], "o", color=RED, label="turning point")
    axes.plot(batch.memory_bytes / GIB, batch.time_s, "s", color=ORANGE, label="data parallelism")
    axes.axvline(result.limit_bytes / GIB, color=GREEN, linestyle="--", label="memory limit")
    axes.set(xlabel="memory of one GPU (GiB, summed)", ylabel="iteration time (s)",
             title="GPT-2, batch 64 × 1,024, on 8 GPUs of dgx-v100-16gb",
             ylim=(0.95 * time.min(), 1.5 * time.max()))  # fmt: skip
    axes.legend()
    return figure


def _others(result: Search) -> Iterator[tuple[float, float]]:
    """Strategies near the frontier: some groups of a point take any configuration."""
    draw = np.random.default_rng(1)
    kinds = [len(cost.time_s) for cost in result.problem.costs]
    for _ in range(OTHERS):
        choices = result.solution.choices[draw.integers(len(result.time_s))].copy()
        for group in draw.choice(len(kinds), size=draw.integers(1, 12), replace=False):
            choices[group] = draw.integers(kinds[group])
        point = evaluate(result.problem, choices)
        yield point.memory_bytes / GIB, point.time_s


def split_picture() -> Any:
    """Four ways to split VGG-16's second fully connected layer over a 2 × 2 mesh."""
    graph = read_graph(shipped_graph("vgg16"))
    linear = [op for op in graph.operators if op.kind == "aten.linear.default"][1]
    semantics = analyse(linear, graph.tensors)
    names = [variable.name for variable in semantics.variables]
    batch, out, summed = (
        next(i for i, v in enumerate(semantics.variables) if test(i, v))
        for test in (
            lambda i, v: (
                0 in {a[i].dim for a in semantics.inputs[:1] if i in a} and not v.is_reduction
            ),
            lambda i, v: not v.is_reduction and i not in semantics.inputs[0],
            lambda i, v: v.is_reduction,
        )
    )
    cases = [
        ((batch, batch), f"{names[batch]}/4:\ndata parallelism"),
        ((out, out), f"{names[out]}/4:\nthe output's features"),
        ((batch, out), f"{names[batch]}/2, {names[out]}/2:\nboth"),
        ((batch, summed), f"{names[batch]}/2, {names[summed]}/2:\nterms of a sum"),
    ]
    figure, grid = pyplot.subplots(len(cases), 3, figsize=(7, 8), gridspec_kw={"hspace": 0.55})
    tensors = [graph.tensors[name] for name in (*linear.inputs[:2], linear.outputs[0])]
    for row, (split, title) in zip(grid, cases, strict=True):
        layouts = operator_layouts(semantics, split)
        three = (layouts.inputs[0], layouts.inputs[1], layouts.outputs[0])
        for axes, tensor, pair, what in zip(
            row, tensors, three, ("input", "weight", "output"), strict=True
        ):
            _draw_tensor(axes, tensor.shape, pair.forward, what)
        row[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=9)
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in DEVICES]
    figure.legend(handles, [f"device {d // 2},{d % 2}" for d in range(4)], loc="lower center",
                  ncols=4, frameon=False)  # fmt: skip
    figure.suptitle(f"{linear.kind} on a mesh of 2 × 2: who has which part", x=0.5, y=0.97)
    return figure


def _draw_tensor(axes: Any, shape: Sequence[int], layout: Sequence[int], what: str) -> None:
    """The tensor as a rectangle; each part in the colours of the devices that hold it."""
    regions: dict[tuple[tuple[float, float], ...], list[int]] = {}
    for device in range(4):
        at = (device // 2, device % 2)
        region = []
        for dim in range(2):
            begin, end = 0.0, 1.0
            for axis in (a for a, d in enumerate(layout) if d == dim):
                size = (end - begin) / 2
                begin, end = begin + at[axis] * size, begin + (at[axis] + 1) * size
            region.append((begin, end))
        regions.setdefault(tuple(region), []).append(device)
    for (rows, columns), holders in regions.items():
        width = (columns[1] - columns[0]) / len(holders)
        for i, device in enumerate(holders):
            axes.add_patch(Rectangle((columns[0] + i * width, 1 - rows[1]), width,
                                     rows[1] - rows[0], color=DEVICES[device]))  # fmt: skip
        axes.add_patch(Rectangle((columns[0], 1 - rows[1]), columns[1] - columns[0],
                                 rows[1] - rows[0], fill=False, lw=1.2))  # fmt: skip
    copies = 4 // len(regions)
    note = "one device each" if copies == 1 else f"{copies} devices have each part whole"
    if PARTIAL in layout:
        note = f"{copies} devices have terms of each part"
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[], yticks=[])
    axes.set_title(f"{what} {shape[0]:,} × {shape[1]:,}\n{note}", fontsize=8)
    for side in axes.spines.values():
        side.set_visible(False)


def elimination_picture() -> Any:
    """A chain a → b → c; b is eliminated: each pair of choices of a and c keeps a frontier."""
    costs = {
        "a": [(2, 4.0), (4, 2.0)],
        "b": [(1, 5.0), (3, 4.8), (6, 1.5)],
        "c": [(2, 3.0), (5, 1.0)],
    }
    move = 0.8
    figure = pyplot.figure(figsize=(7, 3.6))
    chain = figure.add_axes((0.0, 0.1, 0.34, 0.8))
    chain.set(xlim=(0, 1), ylim=(0, 1))
    chain.axis("off")
    for y, name in ((0.85, "a"), (0.5, "b"), (0.15, "c")):
        colour = ORANGE if name == "b" else BLUE
        chain.text(0.16, y, name, ha="center", va="center", color="white", weight="bold",
                   bbox={"boxstyle": "circle,pad=0.5", "color": colour})  # fmt: skip
        said = "\n".join(f"choice {i}: {m} GiB, {t:g} s" for i, (m, t) in enumerate(costs[name]))
        chain.text(0.32, y, said, va="center", fontsize=8)
    for y in (0.68, 0.32):
        chain.annotate("", (0.16, y - 0.05), (0.16, y + 0.05), arrowprops={"arrowstyle": "->"})
    for i in range(2):
        for k in range(2):
            axes = figure.add_axes((0.45 + 0.29 * k, 0.58 - 0.46 * i, 0.24, 0.32))
            combined = [
                (m, t + move * (i != min(j, 1)) + move * (min(j, 1) != k))
                for j, (m, t) in enumerate(costs["b"])
            ]
            kept = _solved(costs["a"][i], combined, costs["c"][k])
            m0 = costs["a"][i][0] + costs["c"][k][0]
            t0 = costs["a"][i][1] + costs["c"][k][1]
            for m, t in (c for c in combined if c[0] + m0 not in dict(kept)):
                axes.plot(m + m0, t + t0, "x", color=RED, markersize=6)
            axes.step(*zip(*kept, strict=True), where="post", color=BLUE, marker="o", markersize=4)
            axes.set(xlim=(4, 16), ylim=(3, 15))
            axes.set_title(f"a takes {i}, c takes {k}: {len(kept)} of 3 kept", fontsize=8)
            axes.tick_params(labelsize=7)
    figure.text(0.5, 0.0, "after b is eliminated: memory (GiB) against time (s) of a, b and c")
    return figure


def _solved(
    first: tuple[float, float], middle: list[tuple[float, float]], last: tuple[float, float]
) -> list[tuple[float, float]]:
    """The frontier of the chain with its ends fixed, as `shardwise solve` finds it."""
    import msgspec

    def operator(name: str, choices: list[tuple[float, float]]) -> dict[str, Any]:
        costs = [{"memory_bytes": m, "time_s": t} for m, t in choices]
        return {"name": name, "choices": costs}

    document = {
        "schema": "shardwise.problem/1",
        "operators": [operator("a", [first]), operator("b", middle), operator("c", [last])],
        "edges": [],
    }
    answer = solve_problem(problem_from_json(msgspec.json.encode(document)))
    return [(point["memory_bytes"], point["time_s"]) for point in answer["points"]]


def curve_picture() -> Any:
    """GPT-2 on up to 32 H100: samples a second, and what one GPU contributes."""
    answer = curve(read_graph(shipped_graph("gpt2")), load_hardware("dgx-h100"), 32)
    points = [point for point in answer["points"] if point["feasible"]]
    gpus = np.array([point["gpus"] for point in points])
    rate = np.array([point["samples_per_s"] for point in points])
    each = rate / gpus
    good = gpus[each >= 0.5 * each.max()]
    knee = int(np.argmax(np.where(np.isin(gpus, good), rate, 0.0)))
    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    axes.plot(gpus, each.max() * gpus, ":", color=GREY, label="every GPU as good as the best one")
    axes.plot(gpus, rate, "o", color=BLUE, markersize=3, label="exactly n GPUs")
    axes.step(gpus, np.maximum.accumulate(rate), where="post", color=BLUE, lw=1,
              label="at most n GPUs")  # fmt: skip
    axes.plot(gpus[knee], rate[knee], "o", color=RED,
              label=f"the fastest with half of the best rate per GPU: {gpus[knee]}")  # fmt: skip
    for node in (8, 16, 24):
        axes.axvline(node + 0.5, color=GREY, lw=0.6)
    axes.text(8.7, 0.02 * rate.max(), "second node", fontsize=8, color="grey")
    axes.set(xlabel="GPUs", ylabel="samples a second", ylim=(0, 1.75 * rate.max()),
             title="GPT-2, batch 64 × 1,024, on dgx-h100: the curve and its knee")  # fmt: skip
    axes.legend(loc="upper left", fontsize=8)
    return figure


BOXES = {
    "you": (0.0, 0.55, "scheduler, script,\nbrowser, command"),
    "serve": (0.29, 0.55, "shardwise serve\nHTTP, page, metrics"),
    "rows": (0.56, 0.78, "PostgreSQL or SQLite\nits rows are the truth"),
    "bell": (0.56, 0.32, "Redis or Valkey\nonly a doorbell"),
    "worker": (0.83, 0.55, "shardwise worker\nsearches"),
    "agent": (0.29, 0.02, "shardwise agent\non each GPU host"),
}
ARROWS = (
    ("you", "serve", "<->", (0.235, 0.75), "graph, hardware,\nquestion; answer"),
    ("serve", "rows", "<->", (0.50, 0.86), "job,\nresult"),
    ("serve", "bell", "->", (0.50, 0.42), "rings"),
    ("bell", "worker", "->", (0.80, 0.42), "rings"),
    ("rows", "worker", "<->", (0.80, 0.86), "lease,\nresult"),
    ("agent", "serve", "<->", (0.475, 0.22), "profiles, measurements;\nplans to run"),
)


def service_picture() -> Any:
    """How a question goes through the service."""
    figure, axes = pyplot.subplots(figsize=(9, 3.8))
    axes.set(xlim=(-0.01, 1.02), ylim=(0, 1))
    axes.axis("off")
    width, height = 0.18, 0.18
    for key, (x, y, text) in BOXES.items():
        colour = "#e8f4d9" if key in ("rows", "bell") else "#dcecf8"
        axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="#456"))
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8)
    for one, other, style, (x, y), label in ARROWS:
        start, end = _between(BOXES[one], BOXES[other], width, height)
        axes.add_patch(FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=10))
        axes.text(x, y, label, fontsize=7, ha="center", va="bottom")
    return figure


def _between(one: Any, other: Any, width: float, height: float) -> tuple[Any, Any]:
    """Where an arrow leaves a box and enters another."""
    if abs(one[0] - other[0]) < 0.01:
        up = one[1] < other[1]
        x = one[0] + width / 2
        return (x, one[1] + (height if up else 0)), (x, other[1] + (0 if up else height))
    y = one[1] + height / 2
    return (one[0] + width, y), (other[0], other[1] + height / 2)


if __name__ == "__main__":
    main()
