"""Pictures in one style."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

from paper.result import OUT, PICTURES

OURS, MESH, PARALLEL, OPTCNN, TOFU = "#0f766e", "#c2410c", "#334155", "#7c3aed", "#b91c1c"


def save(name: str, panels: int, fill: Callable[[Any], None], width: float = 4.2) -> str:
    """Draw `panels` panels side by side into docs/pictures; answers the file's name.

    A PNG of the same lies under out/paper, to look at.
    """
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "shardwise"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, panels, figsize=(width * panels, 3.9), layout="constrained")
    fill(axes)
    for panel in figure.axes:
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    path = Path(PICTURES) / f"paper-{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / f"{name}.png", dpi=100)
    plt.close(figure)
    return path.name
