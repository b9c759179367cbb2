"""A table or figure of a paper, reproduced: tables, statements that were checked, a picture."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUT = Path("out/paper")
PICTURES = Path("docs/pictures")
WHY = Path(__file__).parent / "why"
"""A text for each part: why ours differs, if it does."""
KEPT = Path(__file__).parent / "results"
"""Every part as it was last made; the page is made of these."""


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

    @property
    def part(self) -> str:
        """The paper and the number of its table or figure: the title up to a colon."""
        return self.title.partition(":")[0]

    def markdown(self, pictures: str = "pictures") -> str:
        parts = [f"## {self.title}"]
        parts += [f"![{self.title}]({pictures}/{name})" for name in self.pictures]
        parts += [table.markdown() for table in self.tables]
        if self.claims:
            rows = [(c.statement, "yes" if c.holds else "**no**", c.ours) for c in self.claims]
            parts.append(Table(("The paper says", "so here", "ours"), rows).markdown())
        why = WHY / f"{self.name}.md"
        if why.exists():
            parts.append(why.read_text("utf-8").rstrip())
        return "\n\n".join(parts) + "\n"

    def keep(self, folder: Path = KEPT) -> None:
        """Writes what the page shows as JSON, a row of a table on each line."""
        document = {
            "name": self.name,
            "title": self.title,
            "pictures": self.pictures,
            "tables": [{"headers": t.headers, "rows": list(t.rows)} for t in self.tables],
            "claims": [vars(claim) for claim in self.claims],
        }
        text = json.dumps(document, indent=1, ensure_ascii=False)
        # A row's cells on one line: a changed figure is one changed line.
        text = re.sub(r"\[\s+(\"[^\[\]{}]*?\")\s+\]", _on_one_line, text)
        (folder / f"{self.name}.json").write_text(text + "\n", "utf-8")

    @classmethod
    def kept(cls, name: str, folder: Path = KEPT) -> Result:
        """Returns a part that was kept, without its `data`."""
        document = json.loads((folder / f"{name}.json").read_text("utf-8"))
        return cls(
            name=document["name"],
            title=document["title"],
            pictures=document["pictures"],
            tables=[
                Table(tuple(table["headers"]), [tuple(row) for row in table["rows"]])
                for table in document["tables"]
            ],
            claims=[Claim(**claim) for claim in document["claims"]],
        )

    def write(self) -> None:
        """Markdown and JSON under out/paper."""
        OUT.mkdir(parents=True, exist_ok=True)
        up = "../../docs/pictures"
        (OUT / f"{self.name}.md").write_text(self.markdown(up))
        claims = [vars(claim) for claim in self.claims]
        document = {"name": self.name, "title": self.title, "claims": claims, **self.data}
        (OUT / f"{self.name}.json").write_text(json.dumps(document, indent=1) + "\n")


def _on_one_line(found: re.Match[str]) -> str:
    return "[" + re.sub(r"\s*\n\s*", " ", found[1]) + "]"


def against(ours: float, theirs: float) -> str:
    """How far ours is from theirs."""
    return f"{ours / theirs - 1:+.0%}"
