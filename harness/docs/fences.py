"""The fenced command blocks of a Markdown page, each with the mark above it.

A mark is an HTML comment on the line above a block (a blank line between is fine). It is
not shown, and says how a test treats the block when it is not simply run and has to exit with 0:

    <!-- not run: needs Docker -->                    checked only (see fence_checks.py)
    <!-- run by: tests/end_to_end/test_cli.py -->       another test runs it
    <!-- background: http://127.0.0.1:8000/readyz --> runs until the page ends, ready by that URL
    <!-- exit code: 1 -->                             the block ends with this code
    <!-- file: train.py -->                           what the block has is written to this file
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELL = ("sh", "bash", "console")
COMMANDS = (*SHELL, "python")
MARKS = ("not run", "run by", "background", "exit code", "file")

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`]*)$")
_MARK = re.compile(rf"^ *<!-- (?P<kind>{'|'.join(MARKS)}): (?P<value>.+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its place, its language, its text, and its mark (kind, value)."""

    page: str
    line: int
    language: str
    text: str
    mark: tuple[str, str] | None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> str:
        """The block as a shell script; of a console's block, what follows the prompts."""
        if self.language != "console":
            return self.text
        taken: list[str] = []
        goes_on = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                taken.append(line[2:])
            elif taken and (goes_on or line.startswith("> ")):
                taken.append(line.removeprefix("> "))
            else:
                goes_on = False
                continue
            goes_on = taken[-1].endswith("\\")
        return "".join(f"{line}\n" for line in taken)


def pages() -> list[str]:
    """Returns README and every page under docs/, as paths from the repository's root."""
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    built = ROOT / "docs" / "_build"
    return sorted(str(p.relative_to(ROOT)) for p in paths if built not in p.parents)


def blocks(page: str, text: str | None = None) -> Iterator[Block]:
    """Yields all fenced blocks of a page, in order, whatever their language."""
    lines = (ROOT / page).read_text("utf-8").splitlines() if text is None else text.splitlines()
    mark: tuple[str, str] | None = None
    at = 0
    while at < len(lines):
        if opened := _FENCE.match(lines[at]):
            indent, fence = opened["indent"], opened["fence"]
            start = at + 1
            while (at := at + 1) < len(lines) and lines[at].strip() != fence:
                pass
            assert at < len(lines), f"{page}:{start}: a fence that is never closed"
            body = "".join(f"{line.removeprefix(indent)}\n" for line in lines[start:at])
            yield Block(page, start, opened["info"].strip(), body, mark)
            mark = None
        elif marked := _MARK.match(lines[at]):
            assert mark is None, f"{page}:{at + 1}: two marks for one block"
            mark = (marked["kind"], marked["value"])
        elif lines[at].strip():
            assert mark is None, f"{page}:{at}: a mark with no block under it"
        at += 1


def command_blocks(page: str) -> list[Block]:
    """Returns the blocks of a page whose language is one of commands, and files that they need."""
    return [
        block
        for block in blocks(page)
        if block.language in COMMANDS or (block.mark is not None and block.mark[0] == "file")
    ]


def unfenced_commands(page: str) -> list[str]:
    """Returns commands that no test would see: in indented blocks and fences without a language."""
    text = (ROOT / page).read_text("utf-8")
    fenced = "".join(block.text for block in blocks(page) if not block.language)
    bare = re.sub(r"^ *(`{3,})[^`\n]*\n.*?^ *\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?<=\n\n) {4}(?:\$ )?(?:shardwise|python|curl|pip|make) .*", bare)
    hidden = re.findall(r"^(?:\$ )?(?:shardwise|python|curl|pip|make) .*", fenced, re.MULTILINE)
    return [*indented, *hidden]
