"""The page docs/paper.md, from the results."""

from __future__ import annotations

import sys
from pathlib import Path

from paper.result import Result

PAGE = Path("docs/paper.md")

HEAD = Path(__file__).parent / "why" / "head.md"


def write_page(results: list[Result]) -> None:
    """All results, with a list of what does not agree in front."""
    claims = [(result, claim) for result in results for claim in result.claims]
    failed = [(result, claim) for result, claim in claims if not claim.holds]
    lines = [f"{len(claims) - len(failed)} of {len(claims)} statements hold here."]
    if failed:
        lines[0] += " Those that do not, with why further down:"
        lines.append("")
        lines += [
            f"- {result.title.partition(':')[0]}: {claim.statement}; ours: {claim.ours}."
            for result, claim in failed
        ]
    body = "\n".join(result.markdown() for result in results)
    PAGE.write_text(HEAD.read_text() + "\n".join(lines) + "\n\n" + body)
    print(f"wrote {PAGE}", file=sys.stderr)
