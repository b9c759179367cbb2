"""TensorOpt's Table 4 next to ours: data parallelism ÷ mini-time on 16 GPUs, target within 15 %.

Times are replayed (communication overlapped where nothing waits for it); the paper executed its.
"""

from __future__ import annotations

from typing import Any

from paper.table4 import TARGET, THEIRS, row


def run() -> dict[str, Any]:
    """Prints a row for each model and returns them as data (seconds)."""
    print(
        f"{'model':14} {'parallel s':>10} {'paper':>6} {'mini-time s':>11} {'paper':>6} "
        f"{'ratio':>6} {'paper':>6} {'off':>6} {'target':>7}"
    )
    rows = []
    for model, (mini, parallel, _) in THEIRS.items():
        ours = row(model)
        off = ours.ratio / (parallel / mini) - 1
        rows.append({"model": model, **ours.as_data(), "paper": [mini, parallel], "off": off})
        print(
            f"{model:14} {ours.parallel_s:10.3f} {parallel:6.2f} {ours.mini_s:11.3f} "
            f"{mini:6.2f} {ours.ratio:6.2f} {parallel / mini:6.2f} {off:+6.0%} {TARGET:7.0%}",
            flush=True,
        )
    return {"rows": rows, "target": TARGET}


if __name__ == "__main__":
    run()
