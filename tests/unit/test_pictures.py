"""Pictures: one drawing in every format; what points say under a browser's pointer."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

import shardwise
from harness.replayed_frontier import replayed_curve, replayed_frontier
from shardwise.errors import BadInput
from shardwise.pictures.figure import SVG, Picture
from shardwise.pictures.plots import GIB, curve_picture, frontier_picture

VGG, V100 = "shipped:vgg16", "dgx-v100-16gb"


def _texts(svg: str) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(svg).iter(f"{{{SVG}}}title")]


def test_each_point_of_a_frontier_says_its_figures() -> None:
    frontier = shardwise.frontier(VGG, V100, 4, overlap=False)
    texts = _texts(frontier_picture(frontier).svg())
    assert len(texts) == len(frontier.points) > 2
    for text, point in zip(texts, frontier.points, strict=True):
        assert text.startswith(f"{point.memory_bytes / GIB:.2f} GiB, {point.time_s:.4g} s")


def test_a_frontier_of_replayed_steps_is_drawn_on_their_axes() -> None:
    picture = frontier_picture(replayed_frontier())
    (axes,) = picture.figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert axes.get_xlabel() == "peak memory of one GPU (GiB)"
    assert axes.get_ylabel() == "time of a step (s)"
    assert lines["time of a step"].get_xydata().tolist() == [[2, 1.0], [3, 0.75], [5, 0.5]]
    exposed = lines["exposed communication"].get_xydata()
    assert exposed.tolist() == [[2, 0.75], [3, 0.5], [5, 0.25]]
    assert lines["turning point"].get_xydata().tolist() == [[3, 0.75]]
    assert lines["memory limit"].get_xdata() == [4, 4]
    assert [text.split(":")[0] for text in _texts(picture.svg())] == [
        "2.00 GiB, 1 s", "3.00 GiB, 0.75 s", "5.00 GiB, 0.5 s"
    ]  # fmt: skip


def test_a_frontier_of_sums_is_drawn_on_theirs() -> None:
    points = replayed_frontier().points[::-1]
    document = replace(replayed_frontier(), overlap=False, points=points)
    (axes,) = frontier_picture(document).figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert axes.get_xlabel() == "memory per GPU (GiB)"
    assert lines["iteration time"].get_xydata().tolist() == [[7, 1.75], [8, 1.5], [9, 1.25]]


def test_a_curve_of_replayed_steps_is_drawn_with_their_times() -> None:
    picture = curve_picture(replayed_curve())
    exactly, best, *_ = picture.figure.axes[0].lines
    assert exactly.get_ydata().tolist() == best.get_ydata().tolist() == [1.0, 0.75, 0.5]
    assert _texts(picture.svg())[0] == "1 GPUs: 1 s"
    (axes, _) = curve_picture(replace(replayed_curve(), overlap=False)).figure.axes
    assert axes.lines[0].get_ydata().tolist() == [1.25, 1.5, 1.75]


def test_each_count_of_a_curve_says_its_time_and_rate() -> None:
    curve = shardwise.curve(VGG, V100, 3, overlap=False)
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


def test_the_scale_follows_the_range_unless_it_is_said() -> None:
    from shardwise.pictures.scales import scale_for

    assert scale_for(None, [0.0, 1.0, 19.0], [5.0]) == "linear"
    assert scale_for(None, [1.0], [0.0, 0.1, 2.0]) == "log"
    assert scale_for("linear", [1.0, 1000.0]) == "linear"
    with pytest.raises(BadInput, match="linear, log"):
        scale_for("cubic", [1.0])
