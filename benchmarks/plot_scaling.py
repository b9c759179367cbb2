"""Draw docs/pictures/scaling.svg from out/bench/bench.json (written by `make bench`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

RESULTS = Path("out/bench/bench.json")
PICTURE = Path("docs/pictures/scaling.svg")
PANELS = (
    ("layers", "x", "layers of a GPT, 16 GPUs, certified 1 %"),
    ("devices", "x", "GPUs, Llama 8B, certified 1 %"),
    ("configurations", "choices_mean", "configurations per group (mean), Llama 8B, 64 GPUs"),
    ("epsilon", "x", "epsilon, GPT of 24 layers, 16 GPUs"),
)


def _plain(value: float, position: int) -> str:
    """Labels at 1, 2 and 5 of each power of ten."""
    return f"{value:g}" if f"{value:e}"[0] in "125" else ""


def main() -> None:
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "shardwise"
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    scaling: dict[str, list[dict[str, Any]]] = json.loads(RESULTS.read_text())["bench_scaling"]
    figure, panels = plt.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    for panel, (series, x, label) in zip(panels.flat, PANELS, strict=True):
        rows = scaling[series]
        at = [row[x] for row in rows]
        panel.loglog(at, [row["cold_s"] for row in rows], "o-", label="whole answer")
        panel.loglog(at, [row["solve_s"] for row in rows], "s--", label="solver alone")
        panel.set_xticks(at, labels=[f"{v:.0f}" if v >= 2 else f"{v:g}" for v in at])
        panel.xaxis.set_minor_locator(ticker.NullLocator())
        for side in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
            side(ticker.FuncFormatter(_plain))
        panel.set_xlabel(label)
        panel.set_ylabel("seconds")
        panel.grid(alpha=0.3, which="both")
        panel.legend(frameon=False)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
