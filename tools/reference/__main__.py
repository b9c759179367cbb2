"""Writes every page of docs/reference: `python -m tools.reference`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.paper import page as paper
from benchmarks.published import page as published
from benchmarks.published.reading import Published, read_published
from benchmarks.published.stored import read_stored, results
from tools.reference import (
    agent_settings,
    command_line,
    execute_operators,
    http,
    metrics,
    operators,
    python,
    refusals,
    settings,
)

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "agent-settings.md": agent_settings.page,
    "cli.md": command_line.page,
    "execute-operators.md": execute_operators.page,
    "http.md": lambda: http.page(http.openapi()),
    "metrics.md": lambda: metrics.page(metrics.readers()),
    "operators.md": operators.page,
    "paper.md": lambda: paper.page(paper.kept_results()),
    "published-steps.md": lambda: _steps(read_published()),
    "python.md": python.page,
    "refusals.md": refusals.page,
    "settings.md": settings.page,
}


def _steps(steps: Published) -> str:
    return published.rows(steps, results(steps, read_stored()))


def main() -> None:
    """Writes the pages; existing ones are replaced."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
