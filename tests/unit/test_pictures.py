"""Pictures: one drawing in every format; what points say under a browser's pointer."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import shardwise
from shardwise.errors import BadInput
from shardwise.pictures.figure import SVG, Picture
from shardwise.pictures.plots import GIB, curve_picture, frontier_picture

VGG, V100 = "shipped:vgg16", "dgx-v100-16gb"


def _texts(svg: str) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(svg).iter(f"{{{SVG}}}title")]


def test_each_point_of_a_frontier_says_its_figures() -> None:
    frontier = shardwise.frontier(VGG, V100, 4)
    texts = _texts(frontier_picture(frontier).svg())
    assert len(texts) == len(frontier.points) > 2
    for text, point in zip(texts, frontier.points, strict=True):
        assert text.startswith(f"{point.memory_bytes / GIB:.2f} GiB, {point.time_s:.4g} s")


def test_each_count_of_a_curve_says_its_time_and_rate() -> None:
    curve = shardwise.curve(VGG, V100, 3)
    texts = _texts(curve_picture(curve).svg())
    fitting = [p for p in curve.points if p.feasible]
    assert texts == [f"{p.gpus} GPUs: {p.time_s:.4g} s" for p in fitting] + [
        f"{p.gpus} GPUs: {p.samples_per_s:.4g} samples per second" for p in fitting
    ]


def test_a_page_holds_the_drawing_and_escapes_what_it_is_called(tmp_path: Path) -> None:
    name = "<script>alert('a & b')</script>"
    picture, axes = Picture.of_panels(name)
    axes.plot([1, 2], [3, 4])
    axes.set_title(name)
    picture.show_texts(axes, [(1.0, 3.0, name), (2.0, 4.0, "the second")])
    page = tmp_path / "picture.html"
    picture.write(str(page))
    content = page.read_text()
    assert "<script" not in content
    assert not re.search(r"(?:src|href)=\"(?!#)", content)
    svg = content[content.index("<svg") : content.index("</svg>") + 6]
    assert _texts(svg) == [name, "the second"]


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_the_same_document_is_the_same_file(tmp_path: Path, suffix: str) -> None:
    curve = shardwise.curve(VGG, V100, 2)
    files = [tmp_path / f"{n}{suffix}" for n in "ab"]
    for file in files:
        curve_picture(curve).write(str(file))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_another_format_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    picture, _ = Picture.of_panels("a title")
    with pytest.raises(BadInput, match="picture format"):
        picture.write(str(tmp_path / "picture.pdf"))
    assert not list(tmp_path.iterdir())
