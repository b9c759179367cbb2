"""Tofu Table 2: weights, gradients and optimizer history of its benchmarks."""

from __future__ import annotations

from paper.models import graph
from paper.result import Claim, Result, Table
from paper.table1 import parameter_gib

COPIES = 3
WIDE = {
    # layers: widening 4, 6, 8, 10
    50: (4.2, 9.6, 17.1, 26.7),
    101: (7.8, 17.1, 30.6, 47.7),
    152: (10.5, 23.4, 41.7, 65.1),
}
WIDTHS = (4, 6, 8, 10)
RNN = {
    # hidden size: 6, 8, 10 layers
    4096: (8.4, 11.4, 14.4),
    6144: (18.6, 28.5, 32.1),
    8192: (33.0, 45.3, 57.0),
}
LAYERS = (6, 8, 10)


def make() -> Result:
    result = Result("tofu_table2", "Tofu Table 2: weights (GB, three copies)")
    wide, wide_off = [], []
    for depth, theirs in WIDE.items():
        sources = (f"zoo:wide-resnet-{depth}:width={width}" for width in WIDTHS)
        ours = [COPIES * parameter_gib(graph(source, 8)) for source in sources]
        wide_off += _offs(ours, theirs)
        wide.append((f"{depth} layers", *_cells(ours, theirs)))
        result.data[f"wresnet-{depth}"] = {"ours_gib": ours, "theirs": theirs}
    rnn, rnn_off = [], []
    for hidden, theirs in RNN.items():
        ours = [COPIES * parameter_gib(graph(rnn_source(n, hidden), 8)) for n in LAYERS]
        rnn_off += _offs(ours, theirs)
        rnn.append((f"hidden {hidden}", *_cells(ours, theirs)))
        result.data[f"rnn-{hidden}"] = {"ours_gib": ours, "theirs": theirs}
    result.tables = [
        Table(("WResNet, ours (paper)", *(f"widened {w} times" for w in WIDTHS)), wide),
        Table(("RNN, ours (paper)", *(f"{n} layers" for n in LAYERS)), rnn),
    ]
    result.claims = [
        Claim("WResNet's weights", max(wide_off) < 0.03, f"within {max(wide_off):.1%}"),
        Claim("RNN's weights", sorted(rnn_off)[-2] < 0.05, _rnn_said(rnn_off)),
    ]
    return result


def rnn_source(layers: int, hidden: int) -> str:
    """An LSTM whose first layer reads inputs of 512, with next to no vocabulary."""
    return f"zoo:lstm:layers={layers},hidden={hidden},inputs=512,vocab=128,steps=2"


def _offs(ours: list[float], theirs: tuple[float, ...]) -> list[float]:
    return [abs(a / b - 1) for a, b in zip(ours, theirs, strict=True)]


def _cells(ours: list[float], theirs: tuple[float, ...]) -> list[str]:
    return [f"{a:.1f} ({b:g})" for a, b in zip(ours, theirs, strict=True)]


def _rnn_said(offs: list[float]) -> str:
    *others, worst = sorted(offs)
    return f"all but one within {others[-1]:.1%}; that one is off by {worst:.0%}"
