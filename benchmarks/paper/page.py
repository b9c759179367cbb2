"""docs/reference/paper.md, from the results that `python -m paper` kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .result import Result

HEAD = Path(__file__).parent / "why" / "head.md"

PARTS: Mapping[str, str] = {
    "table1": "TensorOpt Table 1",
    "fig6": "TensorOpt Fig. 6",
    "fig7": "TensorOpt Fig. 7",
    "fig8": "TensorOpt Fig. 8",
    "table3": "TensorOpt Table 3",
    "table4": "TensorOpt Table 4",
    "tofu_table2": "Tofu Table 2",
    "tofu_fig10": "Tofu Fig. 10",
    "heterog_table1": "HeteroG Table 1",
    "heterog_table3": "HeteroG Tables 2 and 3",
    "heterog_table4": "HeteroG Table 4",
    "heterog_table5": "HeteroG Table 5",
    "heterog_table6": "HeteroG Table 6",
    "heterog_table7": "HeteroG Table 7",
}
"""What a part's title begins with, by name; the page has them in this order."""


def kept_results() -> list[Result]:
    """Returns every part as it was last made, in the page's order."""
    return [Result.kept(name) for name in PARTS]


def page(results: Sequence[Result]) -> str:
    """Returns the page: what does not agree with the papers in front, then every part."""
    claims = [(result.part, claim) for result in results for claim in result.claims]
    failed = [(part, claim) for part, claim in claims if not claim.holds]
    lines = [f"{len(claims) - len(failed)} of {len(claims)} statements hold here."]
    if failed:
        lines[0] += " Those that do not, with why further down:"
        lines.append("")
        lines += [f"- {part}: {claim.statement}; ours: {claim.ours}." for part, claim in failed]
    parts = [result.markdown("../pictures") for result in results]
    return HEAD.read_text("utf-8") + "\n".join(lines) + "\n\n" + "\n".join(parts)


def count_by_paper(results: Sequence[Result]) -> Mapping[str, tuple[int, int]]:
    """Returns how many statements of each paper hold, and how many it has."""
    counts: dict[str, tuple[int, int]] = {}
    for result in results:
        paper = result.part.partition(" ")[0]
        held, of = counts.get(paper, (0, 0))
        held += sum(claim.holds for claim in result.claims)
        counts[paper] = held, of + len(result.claims)
    return counts
