"""Tables and figures in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SIDES = {"l": "---", "r": "---:"}


def table(head: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> str:
    """A table; `sides` has l or r for each column."""
    lines = [head, [SIDES[side] for side in sides], *rows]
    if any(len(cells) != len(head) for cells in lines):
        raise ValueError(f"rows of another number of cells than {len(head)}")
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in cells)} |" for cells in lines)


def seconds(value: float) -> str:
    """Seconds to a millisecond, from ten on to a tenth."""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def percent(error: float | None) -> str:
    """An error in whole percent."""
    return "–" if error is None else f"{error:+.0%}"


def bytes_of(value: float | None) -> str:
    """Bytes in GiB."""
    return "–" if value is None else f"{value / 2**30:.1f}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
