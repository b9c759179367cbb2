"""How every picture is drawn: one figure of matplotlib, written as SVG, PNG or HTML.

The HTML is the SVG in a page. Points that have a text show it under a browser's pointer.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from shardwise.errors import BadInput
from shardwise.outfiles import written

SUFFIXES = (".html", ".svg", ".png")
BLUE, ORANGE, GREEN, RED = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728"
PURPLE = "#9467bd"
SVG = "http://www.w3.org/2000/svg"
SALT = "shardwise"
"""Of the ids in an SVG: a picture of the same document is the same file."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ margin: 1rem; background: white }} svg {{ max-width: 100%; height: auto }}</style>
</head>
<body>
{svg}
</body>
</html>
"""

for prefix, address in (
    ("", SVG),
    ("xlink", "http://www.w3.org/1999/xlink"),
    ("cc", "http://creativecommons.org/ns#"),
    ("dc", "http://purl.org/dc/elements/1.1/"),
    ("rdf", "http://www.w3.org/1999/02/22-rdf-syntax-ns#"),
):
    ElementTree.register_namespace(prefix, address)


def check_suffix(path: str) -> str:
    """Returns the suffix of a plot path. Raises `BadInput` unless it is one that can be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise BadInput(
            f"{path!r} is not a picture format", field="plot", expected=" or ".join(SUFFIXES)
        )
    return suffix


class Picture:
    """A figure with its title, to be drawn on `axes` and written once."""

    def __init__(self, title: str, size: tuple[float, float], **options: Any) -> None:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise BadInput(
                "matplotlib is not installed",
                field="plot",
                expected="pip install 'shardwise[plot]'",
            ) from None
        self.title = title
        self.figure = Figure(figsize=size, **options)
        self._texts: dict[str, list[str]] = {}
        """By the id of a group in the SVG: the text of each of its marks."""

    @classmethod
    def of_panels(cls, title: str, panels: int = 1) -> tuple[Picture, Any]:
        """Returns a picture and its axes (of several panels: an array of them)."""
        picture = cls(title, (8, 4.5 * panels), layout="constrained")
        return picture, picture.figure.subplots(panels, 1)

    def show_text(self, patch: Any, text: str) -> None:
        """Makes a patch show a text under the pointer."""
        patch.set_gid(self._group([text]))

    def show_texts(self, axes: Any, points: Iterable[tuple[float, float, str]]) -> None:
        """Adds texts (x, y, text) that appear under the pointer, within the limits of `axes`."""
        xs, ys, texts = [], [], []
        for x, y, text in points:
            xs.append(x)
            ys.append(y)
            texts.append(text)
        if texts:
            axes.scatter(xs, ys, s=80, alpha=0, zorder=9, gid=self._group(texts))

    def _group(self, texts: list[str]) -> str:
        name = f"texts-{len(self._texts)}"
        self._texts[name] = texts
        return name

    def svg(self, *, selectable: bool = False) -> str:
        """Returns the picture as an SVG document.

        `selectable`: letters are text in the reader's font, not outlines.
        """
        import matplotlib as mpl

        text = StringIO()
        with mpl.rc_context(
            {"svg.hashsalt": SALT, "svg.fonttype": "none" if selectable else "path"}
        ):
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        root = ElementTree.fromstring(text.getvalue())
        for group in root.iter(f"{{{SVG}}}g"):
            texts = self._texts.get(group.get("id", ""))
            if texts is not None:
                marks = list(group.iter(f"{{{SVG}}}use")) or [group]
                for mark, content in zip(marks, texts, strict=True):
                    ElementTree.SubElement(mark, f"{{{SVG}}}title").text = content
        return ElementTree.tostring(root, encoding="unicode")

    def write(self, path: str) -> None:
        """Writes the picture in the format of its suffix, whole or not at all.

        Raises `BadInput` if the suffix is not one of `SUFFIXES`, or the file cannot be written.
        """
        suffix = check_suffix(path)
        with written(path) as temporary:
            if suffix == ".png":
                self.figure.savefig(temporary, dpi=120)
            elif suffix == ".svg":
                head = '<?xml version="1.0" encoding="utf-8"?>\n'
                temporary.write_text(head + self.svg() + "\n", "utf-8")
            else:
                svg = self.svg(selectable=True)
                temporary.write_text(PAGE.format(title=escape(self.title), svg=svg), "utf-8")
