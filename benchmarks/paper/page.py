"""The page docs/paper.md, from the results."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from paper.result import Result

PAGE = Path("docs/paper.md")

HEAD = Path(__file__).parent / "why" / "head.md"

_CLAIM = re.compile(r"^\| (.+) \| (yes|\*\*no\*\*) \| (.+) \|$", re.MULTILINE)


def write_page(results: Sequence[Result]) -> None:
    """All results, with a list of what does not agree in front."""
    _write([result.markdown() for result in results])


def update_page(results: Sequence[Result], titles: Sequence[str]) -> None:
    """Puts these results in place of their parts of the page, and counts its statements anew.

    Parts follow in the order of `titles`, which are what titles begin with, up to a colon.
    """
    parts = {_short(part): part for part in _parts(PAGE.read_text())}
    parts |= {_short(part): part for part in (result.markdown() for result in results)}
    _write([parts[title] for title in titles if title in parts])


def _parts(page: str) -> list[str]:
    """The parts of a page as results write them."""
    return [f"## {part.rstrip()}\n" for part in page.split("\n## ")[1:]]


def _short(part: str) -> str:
    return part.removeprefix("## ").partition("\n")[0].partition(":")[0]


def _write(parts: Sequence[str]) -> None:
    claims = [(_short(part), *found) for part in parts for found in _CLAIM.findall(part)]
    failed = [(title, said, ours) for title, said, holds, ours in claims if holds != "yes"]
    lines = [f"{len(claims) - len(failed)} of {len(claims)} statements hold here."]
    if failed:
        lines[0] += " Those that do not, with why further down:"
        lines.append("")
        lines += [f"- {title}: {said}; ours: {ours}." for title, said, ours in failed]
    PAGE.write_text(HEAD.read_text() + "\n".join(lines) + "\n\n" + "\n".join(parts))
    print(f"wrote {PAGE}", file=sys.stderr)


def count_by_paper(page: str) -> Mapping[str, tuple[int, int]]:
    """How many statements of each paper hold, of how many."""
    counts: dict[str, tuple[int, int]] = {}
    for part in _parts(page):
        holds = [found[1] == "yes" for found in _CLAIM.findall(part)]
        paper = _short(part).partition(" ")[0]
        held, of = counts.get(paper, (0, 0))
        counts[paper] = held + sum(holds), of + len(holds)
    return counts
