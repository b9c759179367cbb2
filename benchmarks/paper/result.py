"""A table or figure of a paper, reproduced: tables, statements that were checked, a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUT = Path("out/paper")
PICTURES = Path("docs/pictures")
WHY = Path(__file__).parent / "why"
"""What is to be said of each part, why ours differs where it does."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, whether ours agrees, and the figures that say so."""

    statement: str
    holds: bool
    ours: str


@dataclass(frozen=True)
class Table:
    """Rows of text under headers."""

    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        lines = [self.headers, tuple("---" for _ in self.headers), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass
class Result:
    """What one table or figure came to; `data` is everything as numbers, for JSON."""

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def markdown(self, pictures: str = "pictures") -> str:
        parts = [f"## {self.title}"]
        parts += [f"![{self.title}]({pictures}/{name})" for name in self.pictures]
        parts += [table.markdown() for table in self.tables]
        if self.claims:
            rows = [(c.statement, "yes" if c.holds else "**no**", c.ours) for c in self.claims]
            parts.append(Table(("The paper says", "so here", "ours"), rows).markdown())
        why = WHY / f"{self.name}.md"
        if why.exists():
            parts.append(why.read_text().rstrip())
        return "\n\n".join(parts) + "\n"

    def write(self) -> None:
        """Markdown and JSON under out/paper."""
        OUT.mkdir(parents=True, exist_ok=True)
        up = "../../docs/pictures"
        (OUT / f"{self.name}.md").write_text(self.markdown(up))
        claims = [vars(claim) for claim in self.claims]
        document = {"name": self.name, "title": self.title, "claims": claims, **self.data}
        (OUT / f"{self.name}.json").write_text(json.dumps(document, indent=1) + "\n")


def against(ours: float, theirs: float) -> str:
    """How far ours is from theirs."""
    return f"{ours / theirs - 1:+.0%}"
