"""How Sphinx builds these pages: `make docs` writes out/docs; every warning is an error.

The pages are written for a reader of the repository too, so nothing in them is Sphinx's own: the
navigation is made of the lists in index.md and adr/README.md, and a link to a file outside this
folder stays as the file's name, because the built pages travel without the repository.
"""

from __future__ import annotations

import re
from os.path import normpath
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.logging import getLogger

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LISTS = ("index", "adr/README")
"""Pages whose lists of links are the navigation: each heading is a part, each link a page."""

project = "Shardwise"
author = "the Shardwise authors"
copyright = author
extensions = ["myst_parser"]
exclude_patterns = ["pictures"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Shardwise"
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # a page from a file may not read others
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["page.css"]
pygments_style = "friendly"
nitpicky = True
# Consoles with "…" for what was left out, and quotes over lines, are no clean input of a lexer.
suppress_warnings = ["misc.highlighting_failure"]


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Append to a page of lists what its headings and links say, as hidden tables of contents."""
    if name not in LISTS:
        return
    seen: set[str] = set()
    for part in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:] or [f"\n{source[0]}"]:
        caption, _, text = part.partition("\n")
        pages = [p for p in re.findall(r"\]\(([^):#]+)\.md\)", text) if not p.startswith("..")]
        fresh = [page for page in dict.fromkeys(pages) if page not in seen]
        seen.update(fresh)
        option = f":caption: {caption}\n" if caption else ""
        listed = "\n".join(fresh)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n{option}\n{listed}\n```\n"


class Outside(SphinxTransform):
    """Links to files of the repository outside docs/ become their names; they have to exist."""

    default_priority = 1

    def apply(self, **kwargs: object) -> None:
        """Replace each; what does not exist is a warning, and so ends the build."""
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for node in list(self.document.findall(kind)):
                path = self._target(node)
                if path.is_relative_to(DOCS) or not path.is_relative_to(ROOT):
                    continue
                if not path.exists():
                    getLogger(__name__).warning("no such file: %s", path, location=node)
                name = path.relative_to(ROOT).as_posix()
                shown = nodes.inline("", "", *node.children)
                if node.astext() != name:
                    shown += [nodes.Text(" ("), nodes.literal(name, name), nodes.Text(")")]
                node.replace_self(shown)

    def _target(self, node: nodes.Element) -> Path:
        """The file that a link names; MyST names Markdown files from docs/ and without `.md`."""
        target = str(node["reftarget"]).partition("#")[0]
        if node.get("refdomain") == "doc":
            return Path(normpath(DOCS / f"{target}.md"))
        return Path(normpath(DOCS / Path(self.env.docname).parent / target))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.add_transform(Outside)
