"""The picture of a simulated cluster: who ended how soon, and how many GPUs were in use."""

from __future__ import annotations

from typing import Any

from shardwise.pictures.figure import BLUE, GREEN, ORANGE, RED, Picture

PURPLE = "#9467bd"
COLOURS = {
    "requests": RED,
    "equal": ORANGE,
    "curves": GREEN,
    "curves-fair": BLUE,
    "curves-left": PURPLE,
}
HOUR = 3600


def plot_cluster(document: dict[str, Any], path: str) -> None:
    """Completion times as the share of jobs that ended within them; GPUs in use over time."""
    _drawn(document).write(path)


def _ended(row: dict[str, Any]) -> tuple[list[float], list[float]]:
    hours = sorted(value / HOUR for value in row["completion_s"])
    return hours, [(i + 1) / len(hours) for i in range(len(hours))]


def _used(row: dict[str, Any]) -> tuple[list[float], list[int]]:
    first = row["in_use"][0][0]
    return [(at - first) / HOUR for at, _ in row["in_use"]], [used for _, used in row["in_use"]]


def _name(row: dict[str, Any]) -> str:
    return f"{row['policy']}: {row['average_completion_s'] / HOUR:.1f} h on average"


def _drawn(document: dict[str, Any]) -> Picture:
    picture, axes = Picture.of_panels(
        f"{document['jobs']} jobs on {document['gpus']} GPUs", panels=2
    )
    for row in document["policies"]:
        colour = COLOURS[row["policy"]]
        axes[0].step(*_ended(row), where="post", color=colour, label=_name(row))
        axes[1].step(*_used(row), where="post", color=colour, linewidth=0.9)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("hours from arrival to end")
    axes[0].set_ylabel("share of jobs")
    axes[0].set_ylim(0, 1.02)
    axes[0].set_title(picture.title, fontsize=10)
    axes[0].legend(frameon=False, loc="lower right")
    axes[1].axhline(document["gpus"], color="grey", linestyle="--", linewidth=1)
    axes[1].set_xlabel("hours since the first arrival")
    axes[1].set_ylabel("GPUs in use")
    axes[1].set_ylim(bottom=0)
    for panel in axes:
        panel.grid(alpha=0.3)
    return picture
