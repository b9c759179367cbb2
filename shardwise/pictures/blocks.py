"""The picture of a graph: its blocks from top to bottom, folded, with what each one holds.

Sizes are in inches, y grows downwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.graph import Graph
from shardwise.graph.blocks import Block, Flow, Part, Sums, fold
from shardwise.graph.inspect import kept_tensors
from shardwise.pictures.figure import BLUE, GREEN, ORANGE, Picture
from shardwise.pictures.plots import GIB

ROW, GAP, PAD = 0.2, 0.34, 0.08
WIDTH, COLUMN, LANE = 6.6, 1.35, 0.16
TOP, MARGIN = 0.9, 0.25
LETTERS, NAME_LETTERS = 88, 22
MOST_PARTS = 12
COLUMNS = (("parameters", BLUE), ("kept activations", GREEN), ("flops", ORANGE))


@dataclass(frozen=True)
class _Box:
    """A block at its place; `lines` are (text, bold) from the title on."""

    block: Block
    top: float
    height: float
    lines: tuple[tuple[str, bool], ...]

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


@dataclass(frozen=True)
class _Lane:
    """A line beside the boxes: `taps` are (position of a box, whether the arrow ends there)."""

    x: float
    taps: tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class _Layout:
    title: str
    boxes: tuple[_Box, ...]
    arrows: tuple[tuple[int, str], ...]
    lanes: tuple[_Lane, ...]
    left: float
    width: float
    height: float


def plot_blocks(graph: Graph, path: str) -> None:
    """Draws the blocks of `graph` as .svg, .png or .html."""
    from shardwise.tdl import registry

    semantics = {op.name: registry.analyse(op, graph.tensors) for op in graph.operators}
    blocks, flows = fold(graph, semantics, kept_tensors(graph, semantics))
    _drawn(_lay_out(graph, blocks, flows)).write(path)


def _lay_out(graph: Graph, blocks: Sequence[Block], flows: Sequence[Flow]) -> _Layout:
    boxes: list[_Box] = []
    y = TOP
    for block in blocks:
        lines = tuple(_lines(block))
        height = len(lines) * ROW + 2 * PAD
        boxes.append(_Box(block, y, height, lines))
        y += height + GAP
    arrows = tuple((f.source, f.label) for f in flows if f.target == f.source + 1)
    lanes = _lanes([f for f in flows if f.target > f.source + 1], boxes)
    left = MARGIN + LANE * (1 + len({lane.x for lane in lanes}))
    total = _total(blocks)
    title = (
        f"{graph.name[:80]}: {len(graph.operators):,} operators, "
        f"{_count(total.parameters)} parameters, {_gib(total.kept_bytes)} kept for "
        f"backward, {_flops(total)} per step"
    )
    width = left + WIDTH + len(COLUMNS) * COLUMN + MARGIN
    return _Layout(title, tuple(boxes), arrows, lanes, left, width, y - GAP + MARGIN)


def _lines(block: Block) -> list[tuple[str, bool]]:
    times = f"   ×{block.count}" if block.count > 1 else ""
    times += "" if block.alike else ", sizes differ"
    lines = [(_cut(block.title, LETTERS - 10) + times, True)]
    if not block.parts:
        return [*lines, (_cut(block.kinds, LETTERS), False)]
    shown = block.parts if len(block.parts) <= MOST_PARTS else block.parts[: MOST_PARTS - 1]
    lines += [(_part(part), False) for part in shown]
    if len(shown) < len(block.parts):
        lines.append((f"… {len(block.parts) - len(shown)} more", False))
    return lines


def _part(part: Part) -> str:
    size = f"  ({_count(part.sums.parameters)} parameters)" if part.sums.parameters else ""
    text = f"{_cut(part.name, NAME_LETTERS)}: {part.kinds}"
    return _cut(text, LETTERS - len(size)) + size


def _lanes(flows: Sequence[Flow], boxes: Sequence[_Box]) -> tuple[_Lane, ...]:
    """Flows that pass other boxes: one line for all that share their source, or their target."""
    leaving = Counter(f.source for f in flows)
    entering = Counter(f.target for f in flows)
    bundles: dict[tuple[bool, int], list[Flow]] = {}
    for flow in flows:
        by_source = leaving[flow.source] >= entering[flow.target]
        key = (by_source, flow.source if by_source else flow.target)
        bundles.setdefault(key, []).append(flow)
    spans = sorted(
        ((min(f.source for f in b), max(f.target for f in b), b) for b in bundles.values()),
        key=lambda span: span[1] - span[0],
    )
    taken: list[list[tuple[int, int]]] = []
    placed: list[tuple[int, list[Flow]]] = []
    for start, end, bundle in spans:
        free = (n for n, used in enumerate(taken) if all(end < a or b < start for a, b in used))
        number = next(free, len(taken))
        if number == len(taken):
            taken.append([])
        taken[number].append((start, end))
        placed.append((number, bundle))
    # The shortest lines lie next to the boxes.
    return tuple(
        _Lane(
            MARGIN + LANE * (len(taken) - number),
            tuple(sorted({(f.source, False) for f in b} | {(f.target, True) for f in b})),
        )
        for number, b in placed
    )


def _total(blocks: Sequence[Block]) -> Sums:
    return Sums(
        sum(b.sums.parameters for b in blocks),
        sum(b.sums.kept_bytes for b in blocks),
        sum(b.sums.flops for b in blocks),
        sum(b.sums.unknown for b in blocks),
    )


def _bars(layout: _Layout) -> list[list[tuple[float, str]]]:
    """For every box the share of the total and its text, column by column."""
    total = _total([box.block for box in layout.boxes])
    rows = []
    for box in layout.boxes:
        sums = box.block.sums
        rows.append(
            [
                (sums.parameters / max(total.parameters, 1), _count(sums.parameters)),
                (sums.kept_bytes / max(total.kept_bytes, 1), _gib(sums.kept_bytes)),
                (sums.flops / max(total.flops, 1), _flops(sums)),
            ]
        )
    return rows


def _gib(size_bytes: int) -> str:
    gib = size_bytes / GIB
    return f"{gib:,.0f} GiB" if gib >= 1000 else f"{gib:.3g} GiB"


def _flops(sums: Sums) -> str:
    return f"{_count(sums.flops, ' ')}flop" + (" + unknown" if sums.unknown else "")


def _count(number: float, unit: str = "") -> str:
    """`124 M`, `1.5 T`; `unit` follows a number that has no such letter."""
    for name, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:.3g}{unit}"


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1].rstrip(" ,") + "…"


def _drawn(layout: _Layout) -> Picture:
    picture = Picture(layout.title, (layout.width, layout.height))
    axes = picture.figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, layout.width)
    axes.set_ylim(layout.height, 0)
    axes.axis("off")
    axes.text(MARGIN, 0.3, layout.title, fontsize=9, weight="bold", va="center")
    right = layout.left + WIDTH
    for place, (name, _) in enumerate(COLUMNS):
        axes.text(right + 0.15 + place * COLUMN, TOP - 0.2, name, fontsize=8, va="center")
    for box, bars in zip(layout.boxes, _bars(layout), strict=True):
        for shift in (0.08, 0.04) if box.block.count > 1 else ():
            axes.add_patch(_rectangle(layout.left + shift, box.top - shift, WIDTH, box.height))
        front = axes.add_patch(_rectangle(layout.left, box.top, WIDTH, box.height))
        picture.show_text(front, _operators(box.block))
        for row, (text, bold) in enumerate(box.lines):
            y = box.top + PAD + (row + 0.5) * ROW
            weight = "bold" if bold else "normal"
            axes.text(layout.left + 0.1, y, text, fontsize=8, weight=weight, va="center")
        for place, (share, text) in enumerate(bars):
            x = right + 0.15 + place * COLUMN
            colour = COLUMNS[place][1]
            axes.barh(box.middle + 0.1, share * (COLUMN - 0.2), 0.1, left=x, color=colour)
            axes.text(x, box.middle - 0.07, text, fontsize=7, va="center")
    for source, label in layout.arrows:
        top, x = layout.boxes[source].top + layout.boxes[source].height, layout.left + WIDTH / 2
        axes.annotate("", (x, top + GAP), (x, top), arrowprops={"arrowstyle": "->", "lw": 0.8})
        axes.text(x + 0.1, top + GAP / 2 - 0.02, label, fontsize=7, va="center", color="dimgrey")
    for lane in layout.lanes:
        ys = [_tap(layout.boxes[n], arrives) for n, arrives in lane.taps]
        axes.plot([lane.x, lane.x], [min(ys), max(ys)], color="grey", lw=0.8)
        for y, (_, arrives) in zip(ys, lane.taps, strict=True):
            style = {"arrowstyle": "->" if arrives else "-", "color": "grey", "lw": 0.8}
            ends = (layout.left, y), (lane.x, y)
            axes.annotate("", *ends, arrowprops={**style, "shrinkA": 0, "shrinkB": 0})
    return picture


def _tap(box: _Box, arrives: bool) -> float:
    """Lines enter in the upper part of a box and leave in its lower part."""
    return box.top + box.height * (0.3 if arrives else 0.75)


def _rectangle(x: float, y: float, width: float, height: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor="#f4f7fb", edgecolor="#456", linewidth=0.8)


def _operators(block: Block) -> str:
    names = [op.name for op in block.operators[:12]]
    more = len(block.operators) - len(names)
    return "\n".join([*names, f"… {more:,} more"] if more > 0 else names)
