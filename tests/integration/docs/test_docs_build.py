"""docs/conf.py builds what is right and refuses what is not; `make check` builds the real pages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")
pytest.importorskip("furo")

ROOT = Path(__file__).parents[3]
INDEX = "# Docs\n\n## Start\n\n- [A page](page.md): text.\n\n## Why\n\n- [Why](adr/README.md)\n"
PAGES = {
    "index.md": INDEX,
    "page.md": "# A page\n\n## Part one\n\nSee [its notes](../deploy/notes.md).\n",
    "adr/README.md": "# Why\n\n| | |\n|---|---|\n| [0001](0001-because.md) | because |\n",
    "adr/0001-because.md": "# Because\n\nOf [a page](../page.md#part-one), in `../deploy`.\n",
}


def built(folder: Path, changes: dict[str, str]) -> tuple[int, str]:
    """A repository of these pages, built as `make docs` does: exit status and messages."""
    docs = folder / "docs"
    for name, text in {**PAGES, **changes}.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text)
    shutil.copy(ROOT / "docs" / "conf.py", docs)
    shutil.copytree(ROOT / "docs" / "static", docs / "static")
    (folder / "deploy").mkdir()
    (folder / "deploy" / "notes.md").write_text("Notes.\n")
    make = (ROOT / "Makefile").read_text()
    line = next(line for line in make.splitlines() if " -m sphinx " in line)
    command = [sys.executable, *line.split()[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


def test_the_lists_are_the_navigation_and_files_outside_keep_their_names(tmp_path: Path) -> None:
    status, messages = built(tmp_path, {})
    assert status == 0, messages
    html = (tmp_path / "out" / "docs" / "page.html").read_text()
    tree = html[html.index('class="sidebar-tree"') :]
    assert tree.index("Start") < tree.index("A page") < tree.index("Why") < tree.index("Because")
    assert "its notes" in html and ">deploy/notes.md<" in html
    assert not (tmp_path / "out" / "docs" / "_downloads").exists()


WRONG = {
    "page.md": "# A page\n\n## Another part\n\n[gone](../deploy/gone.md), [gone](gone.md)\n",
    "extra.md": "# A page that no list names\n",
    "index.md": INDEX + "- [Unwritten](unwritten.md)\n",
}
SAID = ("no such file", "gone.md", "part-one", "extra.md", "unwritten")


def test_what_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    """Each fault is a warning, and a warning is an error."""
    status, messages = built(tmp_path, WRONG)
    assert status != 0
    warnings = [line for line in messages.splitlines() if "WARNING" in line]
    for said in SAID:
        assert any(said in line for line in warnings), messages
